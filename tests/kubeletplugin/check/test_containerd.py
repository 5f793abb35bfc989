# SPDX-License-Identifier: Apache-2.0
"""CDI in containerd's configuration: what each release makes of it, and what is to be written where."""

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.check.containerd import (
    CONFIGS,
    ContainerdFacts,
    containerd_drop_in,
    containerd_findings,
    read_containerd,
)
from kubeletplugin.check.host import Host, write
from kubeletplugin.containers.runtime import version_of
from kubeletplugin.errors import FixError
from kubeletplugin.finding import Level

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


IMAGE = "  sandbox_image = 'x' # ours\n"
FOLDERS = "  cdi_spec_dirs = ['/opt/cdi']\n"


@pytest.mark.parametrize(
    ("files", "version", "remedy", "text"),
    [
        (
            # 1.7 would use the table of a drop-in instead of this one
            {MAIN: OLD + IMPORTS + OLD_TABLE + IMAGE},
            SEVEN,
            'in /etc/containerd/config.toml, in table [plugins."io.containerd.grpc.v1.cri"] (line 3), set'
            " `enable_cdi = true`, and restart containerd; --fix changes /etc/containerd/config.toml so and keeps"
            " /etc/containerd/config.toml.before-dra-driver-gpu",
            OLD + IMPORTS + OLD_TABLE + ON + IMAGE,
        ),
        (
            # no folder is imported
            {MAIN: NEW + NEW_TABLE + OFF},
            TWO,
            "(line 2), set `enable_cdi = true`, and restart containerd; --fix changes",
            NEW + NEW_TABLE + ON,
        ),
        (
            {MAIN: OLD},
            SEVEN,
            'append to /etc/containerd/config.toml [plugins."io.containerd.grpc.v1.cri"] with `enable_cdi = true`',
            OLD + OLD_TABLE + ON,
        ),
        (
            {MAIN: OLD + OLD_TABLE + FOLDERS + "[debug]\n  level = 'info'"},
            SEVEN,
            '`enable_cdi = true` and `cdi_spec_dirs = ["/opt/cdi", "/var/run/cdi"]`',
            OLD + OLD_TABLE + ON + '  cdi_spec_dirs = ["/opt/cdi", "/var/run/cdi"]\n' + "[debug]\n  level = 'info'\n",
        ),
        (
            # kind's, with the table of the plugin after those of its runtimes
            {MAIN: OLD + '[plugins."io.containerd.grpc.v1.cri".containerd]\n  snapshotter = "x"\n' + OLD_TABLE + IMAGE},
            SEVEN,
            "(line 4), set `enable_cdi = true`",
            OLD + '[plugins."io.containerd.grpc.v1.cri".containerd]\n  snapshotter = "x"\n' + OLD_TABLE + ON + IMAGE,
        ),
    ],
)
def test_where_a_drop_in_would_do_harm_fix_changes_lines_and_keeps_a_backup(
    tmp_path: Path, files: dict[str, str], version: tuple[int, ...], remedy: str, text: str
) -> None:
    facts = facts_of(tmp_path, files, version)
    assert remedy in only(containerd_findings(facts)).remedy
    change = containerd_drop_in(facts)
    assert change is not None
    host = make_host(tmp_path / "again", files)
    file = host.here(MAIN)
    file.chmod(0o640)
    assert write(host, change)
    assert (file.read_text(encoding="utf-8"), file.stat().st_mode & 0o777) == (text, 0o640)
    assert host.read(change.backup) == files[MAIN]
    assert f"`mv {MAIN}.before-dra-driver-gpu {MAIN}` and restart it again" in change.next_step
    assert not write(host, change), "nothing is left to do"
    fixed = read_containerd(host, MAIN, version, "/var/run/cdi")
    assert only(containerd_findings(fixed)).level is Level.PASS
    assert containerd_drop_in(fixed) is None


@pytest.mark.parametrize(
    "text",
    [
        OLD + "[plugins]\n  'io.containerd.grpc.v1.cri' = { sandbox_image = 'x' }\n",
        OLD + OLD_TABLE + "  cdi_spec_dirs = [\n    '/opt/cdi',\n  ]\n",
        'disabled_plugins = ["cri"]\n',
    ],
    ids=["inline table", "value of several lines", "no CRI"],
)
def test_a_file_that_fix_cannot_change_is_left_to_the_administrator(tmp_path: Path, text: str) -> None:
    facts = facts_of(tmp_path, {MAIN: text}, SEVEN)
    assert containerd_drop_in(facts) is None
    assert "--fix changes" not in only(containerd_findings(facts)).remedy


def test_a_file_that_somebody_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    host = make_host(tmp_path, {MAIN: OLD})
    change = containerd_drop_in(read_containerd(host, MAIN, SEVEN, "/var/run/cdi"))
    assert change is not None
    host.here(MAIN).write_text(OLD + "# mine\n", encoding="utf-8")
    with pytest.raises(FixError, match=f"{MAIN} was changed meanwhile"):
        write(host, change)
    assert host.read(MAIN) == OLD + "# mine\n"
    assert not host.exists(change.backup)


RKE2 = "/var/lib/rancher/rke2/agent/etc/containerd"
MICROK8S = "/var/snap/microk8s/current/args"


@pytest.mark.parametrize(
    ("main", "text", "template", "made", "restart"),
    [
        (CONFIGS[1], NEW + NEW_TABLE + OFF, "", f"{K3S}/config-v3.toml.tmpl", "'k3s*'"),
        (CONFIGS[1], OLD + OLD_TABLE + OFF, "", f"{K3S}/config.toml.tmpl", "'k3s*'"),
        (CONFIGS[1], OLD + OLD_TABLE + OFF, OLD + OLD_TABLE + IMAGE, f"{K3S}/config.toml.tmpl", "'k3s*'"),
        (CONFIGS[1], OLD + OLD_TABLE + OFF, "{{ template base . }}", "", "'k3s*'"),
        (CONFIGS[2], NEW + NEW_TABLE + OFF, "", f"{RKE2}/config-v3.toml.tmpl", "'rke2*'"),
        (
            CONFIGS[3],
            OLD + OLD_TABLE + OFF,
            OLD + OLD_TABLE + "  stream_server_address = '${SNAP_DATA}'\n",
            f"{MICROK8S}/containerd-template.toml",
            "snap.",
        ),
        (CONFIGS[3], OLD + OLD_TABLE + OFF, "", "", "snap."),
    ],
)
def test_a_file_that_is_made_anew_is_changed_in_its_template(
    tmp_path: Path, main: str, text: str, template: str, made: str, restart: str
) -> None:
    name = made or (f"{MICROK8S}/containerd-template.toml" if "microk8s" in main else f"{K3S}/config.toml.tmpl")
    host = make_host(tmp_path, {main: text, **({name: template} if template else {})})
    facts = read_containerd(host, main, TWO, "/var/run/cdi")
    found = only(containerd_findings(facts))
    assert name in found.remedy
    assert f"`systemctl restart {restart}" in found.remedy
    change = containerd_drop_in(facts)
    assert (change.path if change else "") == made
    if change:
        assert write(host, change)
        assert host.exists(change.backup) == bool(template)
        assert tomllib.loads(change.text)["plugins"].popitem()[1]["enable_cdi"] is True
        assert change.summary == "enable_cdi = true"
        assert not write(host, change)
        assert host.read(main) == text


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


@pytest.fixture(scope="module")
def installed() -> tuple[int, ...]:
    """The release of the containerd on PATH."""
    if shutil.which("containerd") is None:
        pytest.skip("containerd is not installed")
    text = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    return version_of(f"containerd://{text.split()[2].removeprefix('v')}")


def read_by_containerd(main: Path, table: str) -> dict[str, Any]:
    """What containerd makes of the plugin's table."""
    command = ["containerd", "--config", str(main), "config", "dump"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return dict(tomllib.loads(done.stdout)["plugins"][table])


@pytest.mark.parametrize("version", [OLD, NEW, "version = 4\n"])
def test_containerd_itself_takes_the_drop_in(tmp_path: Path, version: str, installed: tuple[int, ...]) -> None:
    if installed < (2,):
        pytest.skip("the table of a drop-in replaces the whole table before containerd 2")
    table = OLD_TABLE if version == OLD else NEW_TABLE
    main = tmp_path / "config.toml"
    text = f'{version}imports = ["{tmp_path}/conf.d/*.toml"]\n{table}{OFF}{FOLDERS}'
    main.write_text(text, encoding="utf-8")
    host = Host(Path("/"))
    drop_in = containerd_drop_in(read_containerd(host, str(main), installed, "/var/run/cdi"))
    assert drop_in is not None
    assert write(host, drop_in)
    runtime = read_by_containerd(main, "io.containerd.cri.v1.runtime")
    assert runtime["enable_cdi"] is True
    assert runtime["cdi_spec_dirs"] == ["/opt/cdi", "/var/run/cdi"]


def test_containerd_itself_takes_changed_lines_and_keeps_all_others(tmp_path: Path, installed: tuple[int, ...]) -> None:
    main = tmp_path / "config.toml"
    main.write_text(f'{OLD}imports = ["{tmp_path}/conf.d/*.toml"]\n{OLD_TABLE}{IMAGE}{OFF}', encoding="utf-8")
    host, old = Host(Path("/")), "io.containerd.grpc.v1.cri"
    change = containerd_drop_in(read_containerd(host, str(main), SEVEN, "/var/run/cdi"))
    assert change is not None
    assert write(host, change)
    if installed >= (2,):
        assert read_by_containerd(main, "io.containerd.cri.v1.runtime")["enable_cdi"] is True
        return
    assert read_by_containerd(main, old)["sandbox_image"] == "x"
    if installed >= (1, 7):  # 1.6 reads the key and does not know it
        assert read_by_containerd(main, old)["enable_cdi"] is True
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/a.toml").write_text(OLD + OLD_TABLE + ON, encoding="utf-8")
    assert read_by_containerd(main, old)["sandbox_image"] != "x", "this is why there is no drop-in"
