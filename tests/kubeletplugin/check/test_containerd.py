# SPDX-License-Identifier: Apache-2.0
"""CDI in containerd's configuration: what each release makes of it, and what is to be written where."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from kubeletplugin.check.containerd import (
    CONFIGS,
    ContainerdFacts,
    containerd_drop_in,
    containerd_findings,
    read_containerd,
)
from kubeletplugin.check.finding import Level
from kubeletplugin.check.host import write

from .support import make_host, only

MAIN = CONFIGS[0]
OLD = "version = 2\n"
NEW = "version = 3\n"
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
OLD_TABLE = '[plugins."io.containerd.grpc.v1.cri"]\n'
NEW_TABLE = "[plugins.'io.containerd.cri.v1.runtime']\n"
ON, OFF = "  enable_cdi = true\n", "  enable_cdi = false\n"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
SEVEN, TWO = (1, 7, 27), (2, 1, 4)


def facts_of(
    root: Path, files: dict[str, str], version: tuple[int, ...], wanted: str = "/var/run/cdi"
) -> ContainerdFacts:
    return read_containerd(make_host(root, files), MAIN, version, wanted)


@pytest.mark.parametrize(
    ("files", "version", "level", "says"),
    [
        # nothing is said: 1.7 has CDI off, 2.x on
        ({}, SEVEN, "fail", "containerd 1.7.27 has CDI disabled, because /etc/containerd/config.toml"),
        ({}, TWO, "pass", "on (the default), reads /var/run/cdi"),
        ({}, (), "warn", "the version of this containerd is unknown"),
        ({MAIN: OLD + OLD_TABLE}, SEVEN, "fail", "has CDI disabled"),
        ({MAIN: OLD + OLD_TABLE}, TWO, "pass", "on (the default)"),
        ({MAIN: OLD + OLD_TABLE}, (), "warn", "does not set enable_cdi"),
        ({MAIN: NEW + NEW_TABLE}, (), "pass", "on (the default)"),  # 1.7 does not read version 3
        # as docker's packages write it
        ({MAIN: 'disabled_plugins = ["cri"]\n'}, (), "fail", f"disabled_plugins in {MAIN} has cri"),
        ({MAIN: NEW + 'disabled_plugins = ["io.containerd.cri.v1.runtime"]\n'}, TWO, "fail", "disabled_plugins"),
        ({MAIN: NEW + 'disabled_plugins = ["io.containerd.snapshotter.v1.btrfs"]\n'}, TWO, "pass", "on (the default)"),
        # it is said, with the line
        ({MAIN: OLD + OLD_TABLE + ON}, SEVEN, "pass", "on (/etc/containerd/config.toml, line 3)"),
        ({MAIN: NEW + NEW_TABLE + ON}, TWO, "pass", "on (/etc/containerd/config.toml, line 3)"),
        ({MAIN: "[plugins.cri]\n" + ON}, SEVEN, "pass", "on (/etc/containerd/config.toml, line 2)"),
        (
            {MAIN: NEW + NEW_TABLE + OFF},
            TWO,
            "fail",
            "disabled by enable_cdi (/etc/containerd/config.toml, line 3)",
        ),
        ({MAIN: NEW + 'plugins."io.containerd.cri.v1.runtime".enable_cdi = false\n'}, TWO, "fail", "config.toml)"),
        # folders
        (
            {MAIN: NEW + NEW_TABLE + "  cdi_spec_dirs = ['/etc/cdi']\n"},
            TWO,
            "fail",
            "specs are written to /var/run/cdi, and containerd reads /etc/cdi (/etc/containerd/config.toml, line 3)",
        ),
        ({MAIN: NEW + NEW_TABLE + "  cdi_spec_dirs = ['/run/cdi/']\n"}, TWO, "pass", "reads /var/run/cdi"),
        ({MAIN: NEW + NEW_TABLE + "  cdi_spec_dirs = 'x'\n"}, TWO, "fail", "not a list of folders"),
        # imports
        (
            {MAIN: OLD + IMPORTS + OLD_TABLE + OFF, "/etc/containerd/conf.d/a.toml": OLD + OLD_TABLE + ON},
            TWO,
            "pass",
            "on (/etc/containerd/conf.d/a.toml, line 3)",
        ),
        (
            # 1.7 keeps the later table whole
            {
                MAIN: OLD + IMPORTS + OLD_TABLE + ON,
                "/etc/containerd/conf.d/a.toml": OLD + OLD_TABLE + "  sandbox_image = 'x'\n",
            },
            SEVEN,
            "fail",
            "has CDI disabled",
        ),
        (
            # 2.x merges the two
            {
                MAIN: OLD + IMPORTS + OLD_TABLE + OFF,
                "/etc/containerd/conf.d/a.toml": OLD + OLD_TABLE + "  sandbox_image = 'x'\n",
            },
            TWO,
            "fail",
            "disabled by enable_cdi (/etc/containerd/config.toml, line 4)",
        ),
        (
            {MAIN: NEW + 'imports = ["more.toml"]\n', "/etc/containerd/more.toml": NEW + NEW_TABLE + OFF},
            TWO,
            "fail",
            "/etc/containerd/more.toml, line 3",
        ),
        # files that are no use
        (
            {MAIN: NEW + 'imports = ["gone.toml"]\n'},
            TWO,
            "warn",
            "/etc/containerd/gone.toml cannot be read: it does not exist",
        ),
        ({MAIN: NEW + 'imports = ["/a/*/b.toml"]\n'}, TWO, "warn", "does not follow folders with *"),
        ({MAIN: NEW + "imports = 3\n"}, TWO, "warn", "imports is not a list of paths"),
        ({MAIN: "version = \n"}, TWO, "warn", "/etc/containerd/config.toml cannot be read: not TOML: Invalid value"),
    ],
)
def test_what_containerd_makes_of_its_files(
    tmp_path: Path, files: dict[str, str], version: tuple[int, ...], level: str, says: str
) -> None:
    found = only(containerd_findings(facts_of(tmp_path, files, version)))
    assert says in found.text
    assert str(found.level) == level
    assert bool(found.remedy) == (level != "pass")


def test_files_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    files = {MAIN: NEW + 'imports = ["b.toml"]\n', "/etc/containerd/b.toml": NEW + 'imports = ["config.toml"]\n'}
    assert [file.path for file in facts_of(tmp_path, files, TWO).files] == [MAIN, "/etc/containerd/b.toml"]


@pytest.mark.parametrize(
    ("files", "version", "path", "body"),
    [
        ({}, SEVEN, MAIN, OLD + '\n[plugins."io.containerd.grpc.v1.cri"]\n'),
        (
            {MAIN: OLD + IMPORTS},
            SEVEN,
            "/etc/containerd/conf.d/99-dra-driver-gpu-cdi.toml",
            OLD + '\n[plugins."io.containerd.grpc.v1.cri"]\n',
        ),
        (
            {MAIN: NEW + IMPORTS + NEW_TABLE + OFF},
            TWO,
            "/etc/containerd/conf.d/99-dra-driver-gpu-cdi.toml",
            NEW + '\n[plugins."io.containerd.cri.v1.runtime"]\n',
        ),
        (
            {MAIN: OLD + IMPORTS + OLD_TABLE + OFF},
            TWO,
            "/etc/containerd/conf.d/99-dra-driver-gpu-cdi.toml",
            OLD + '\n[plugins."io.containerd.grpc.v1.cri"]\n',
        ),
    ],
)
def test_fix_writes_a_file_that_containerd_reads_last(
    tmp_path: Path, files: dict[str, str], version: tuple[int, ...], path: str, body: str
) -> None:
    facts = facts_of(tmp_path, files, version)
    drop_in = containerd_drop_in(facts)
    assert drop_in is not None
    assert drop_in.path == path
    assert drop_in.body == body + '  enable_cdi = true\n  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n'
    assert f"--fix, which writes {path}" in only(containerd_findings(facts)).remedy
    host = make_host(tmp_path / "again", files)
    write(host, drop_in)
    fixed = read_containerd(host, MAIN, version, "/var/run/cdi")
    assert only(containerd_findings(fixed)).level is Level.PASS
    assert containerd_drop_in(fixed) is None


@pytest.mark.parametrize(
    ("files", "version", "remedy"),
    [
        (
            {MAIN: OLD + IMPORTS + OLD_TABLE + "  sandbox_image = 'x'\n"},
            SEVEN,
            'in /etc/containerd/config.toml, in table [plugins."io.containerd.grpc.v1.cri"] (line 3), set'
            " `enable_cdi = true`, and restart containerd; --fix leaves this to you, because containerd 1.7 would use",
        ),
        (
            {MAIN: NEW + NEW_TABLE + OFF},
            TWO,
            "(line 2), set `enable_cdi = true`, and restart containerd; --fix leaves this to you, because"
            " /etc/containerd/config.toml imports no folder",
        ),
        (
            {MAIN: OLD},
            SEVEN,
            'append to /etc/containerd/config.toml [plugins."io.containerd.grpc.v1.cri"] with `enable_cdi = true`',
        ),
    ],
)
def test_where_a_drop_in_would_do_harm_the_line_to_change_is_named(
    tmp_path: Path, files: dict[str, str], version: tuple[int, ...], remedy: str
) -> None:
    facts = facts_of(tmp_path, files, version)
    assert containerd_drop_in(facts) is None
    assert remedy in only(containerd_findings(facts)).remedy


@pytest.mark.parametrize(
    ("main", "text", "remedy", "restart"),
    [
        (CONFIGS[1], NEW + NEW_TABLE + OFF, f"copy {CONFIGS[1]} to {K3S}/config-v3.toml.tmpl; in", "'k3s*'"),
        (CONFIGS[1], OLD + OLD_TABLE + OFF, f"copy {CONFIGS[1]} to {K3S}/config.toml.tmpl; in {K3S}/config", "'k3s*'"),
        (CONFIGS[2], NEW + NEW_TABLE + OFF, "containerd/config-v3.toml.tmpl, in table", "'rke2*'"),
        (
            CONFIGS[3],
            OLD + OLD_TABLE + OFF,
            "in /var/snap/microk8s/current/args/containerd-template.toml, in table",
            "snap.",
        ),
    ],
)
def test_a_file_that_is_made_anew_is_changed_in_its_template(
    tmp_path: Path, main: str, text: str, remedy: str, restart: str
) -> None:
    facts = read_containerd(make_host(tmp_path, {main: text}), main, TWO, "/var/run/cdi")
    assert containerd_drop_in(facts) is None
    found = only(containerd_findings(facts))
    assert remedy in found.remedy
    assert f"`systemctl restart {restart}" in found.remedy


def test_what_a_file_that_is_made_anew_imports_may_be_added_to(tmp_path: Path) -> None:
    main = CONFIGS[1]
    text = f'{NEW}imports = ["{K3S}/config-v3.toml.d/*.toml"]\n{NEW_TABLE}{OFF}'
    host = make_host(tmp_path, {main: text})
    drop_in = containerd_drop_in(read_containerd(host, main, TWO, "/var/run/cdi"))
    assert drop_in is not None
    assert drop_in.path == f"{K3S}/config-v3.toml.d/99-dra-driver-gpu-cdi.toml"
    assert "systemctl restart 'k3s*'" in drop_in.next_step
    write(host, drop_in)
    again = read_containerd(host, main, TWO, "/var/run/cdi")
    assert only(containerd_findings(again)).level is Level.PASS


def test_a_folder_that_is_missing_is_added_to_those_that_are_read(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {MAIN: NEW + IMPORTS + NEW_TABLE + "  cdi_spec_dirs = ['/opt/\"a']\n"}, TWO)
    drop_in = containerd_drop_in(facts)
    assert drop_in is not None
    table = tomllib.loads(drop_in.text)["plugins"]["io.containerd.cri.v1.runtime"]
    assert table["cdi_spec_dirs"] == ['/opt/"a', "/var/run/cdi"]


def test_a_drop_in_of_ours_that_hides_a_later_table_is_a_failure(tmp_path: Path) -> None:
    ours = "/etc/containerd/conf.d/99-dra-driver-gpu-cdi.toml"
    files = {MAIN: OLD + IMPORTS + OLD_TABLE + "  sandbox_image = 'x'\n", ours: OLD + OLD_TABLE + ON}
    found = only(containerd_findings(facts_of(tmp_path, files, SEVEN)))
    assert found.level is Level.FAIL
    assert f"reads {ours} instead of the whole table" in found.text


@pytest.mark.skipif(shutil.which("containerd") is None, reason="containerd is not installed")
@pytest.mark.parametrize("version", [OLD, NEW, "version = 4\n"])
def test_containerd_itself_takes_the_drop_in(tmp_path: Path, version: str) -> None:
    table = OLD_TABLE if version == OLD else NEW_TABLE
    text = f'{version}imports = ["{tmp_path}/conf.d/*.toml"]\n{table}{OFF}  cdi_spec_dirs = ["/opt/cdi"]\n'
    main = tmp_path / "config.toml"
    main.write_text(text, encoding="utf-8")
    host = make_host(tmp_path / "host", {str(main): text})
    drop_in = containerd_drop_in(read_containerd(host, str(main), TWO, "/var/run/cdi"))
    assert drop_in is not None
    (tmp_path / "conf.d").mkdir()
    Path(drop_in.path).write_text(drop_in.text, encoding="utf-8")
    command = ["containerd", "--config", str(main), "config", "dump"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    runtime = tomllib.loads(done.stdout)["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["enable_cdi"] is True
    assert runtime["cdi_spec_dirs"] == ["/opt/cdi", "/var/run/cdi"]
