# SPDX-License-Identifier: Apache-2.0
"""What an administrator has to do so that the runtime finds our specs, and the file that --fix writes.

The programs of the host are scripts. They read the files of the host as the real ones do: containerd's prints what the
main file sets, and what the drop-ins set if the main file imports them.
"""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from kubeletplugin.check.cdi import cdi_findings, fix_runtime
from kubeletplugin.check.runtime import CdiConfig, Runtime, RuntimeAccess, RuntimeFacts, read_runtime
from kubeletplugin.errors import FixError
from kubeletplugin.finding import CheckResult
from kubeletplugin.host.programs import HostPrograms

from .runtimes import CONTAINERD_1, CONTAINERD_2, CRIO, CRIO_SOCKET, RecordedAnswer, serve_runtime
from .support import make_host, only, process

pytestmark = pytest.mark.node

WANTED = "/var/run/cdi"
MAIN = "/etc/containerd/config.toml"
FOLDER = "/etc/containerd/conf.d"
DROP_IN = f"{FOLDER}/99-dra-driver-gpu-cdi.toml"
CRIO_DROP_IN = "/etc/crio/crio.conf.d/99-dra-driver-gpu-cdi.conf"
OFF = CONTAINERD_2.with_config(enableCDI=False)
TABLE = '[plugins."io.containerd.cri.v1.runtime"]'
OLD_TABLE = '[plugins."io.containerd.grpc.v1.cri"]'
RESTART = "`systemctl restart containerd`"


class Containerd:
    """A host with containerd, whose main file is `main`. With `imports`, it reads drop-ins in conf.d. Its program
    prints these imports in any case, as that of containerd 2.3 does.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, main: str, *, imports: bool) -> None:
        self.root = folder / "host"
        self.access = RuntimeAccess(make_host(self.root, {MAIN: main}), HostPrograms(Path("/"), enter=False))
        drop_in = shlex.quote(str(self.root / DROP_IN.lstrip("/")))
        off = f"{TABLE}\nenable_cdi = false\ncdi_spec_dirs = ['/etc/cdi', '/run/cdi']"
        on = f"cat {drop_in}; echo \"cdi_spec_dirs = ['/etc/cdi', '/run/cdi']\"" if imports else f'echo "{off}"'
        script = f"""#!/bin/sh
echo "imports = ['/etc/containerd/one.toml', '{FOLDER}/*.toml']"
if [ -e {drop_in} ]; then {on}; else cat <<'END'
{off}
END
fi
"""
        program = folder / "programs/containerd"
        program.parent.mkdir()
        program.write_text(script, encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def fix(self, answer: RecordedAnswer = OFF) -> CheckResult | None:
        with serve_runtime(self.root, answer):
            facts = read_runtime(self.access, "", WANTED)
        return fix_runtime(self.access, facts)

    def text(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text(encoding="utf-8")

    def exists(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()


def remedy(
    main: str, enabled: bool = False, folders: tuple[str, ...] = ("/etc/cdi", WANTED), version: str = "1.7.27"
) -> str:
    cdi = CdiConfig(enabled, folders)
    facts = RuntimeFacts(WANTED, f"containerd://{version}", Runtime.CONTAINERD, cdi, reads=WANTED in folders, main=main)
    return only(cdi_findings(facts)).remedy


@pytest.mark.parametrize(
    ("main", "file", "restart"),
    [
        (MAIN, f"in {MAIN}, in table ", "systemctl restart containerd"),
        ("/opt/c.toml", "in /opt/c.toml, in table ", "systemctl restart containerd"),
        (
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "in config.toml.tmpl beside /var/lib/rancher/k3s/agent/etc/containerd/config.toml (a copy of that file, if",
            "systemctl restart 'k3s*'",
        ),
        ("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "config-v3.toml.d)", "systemctl restart 'rke2*'"),
        (
            "/var/snap/microk8s/current/args/containerd.toml",
            "in /var/snap/microk8s/current/args/containerd-template.toml, in table ",
            "systemctl restart snap.microk8s.daemon-containerd",
        ),
    ],
)
def test_remedy_names_the_file_and_the_restart(main: str, file: str, restart: str) -> None:
    assert file in remedy(main)
    assert f"set `enable_cdi = true`, and `{restart}`" in remedy(main)


@pytest.mark.parametrize(
    ("version", "table"),
    [
        ("1.7.27", f"in table {OLD_TABLE}, set"),
        ("2.1.4", f"in table {TABLE} (version 2 of the file: {OLD_TABLE}), set"),
        ("dev", f"in table {TABLE} (version 2 of the file: {OLD_TABLE}), set"),
    ],
)
def test_remedy_names_the_table_of_the_release(version: str, table: str) -> None:
    assert table in remedy(MAIN, version=version)


@pytest.mark.parametrize(
    ("enabled", "folders", "lines"),
    [
        (False, ("/etc/cdi",), f'set `enable_cdi = true` and `cdi_spec_dirs = ["/etc/cdi", "{WANTED}"]`'),
        (True, ("/etc/cdi",), f'set `cdi_spec_dirs = ["/etc/cdi", "{WANTED}"]`'),
        (True, ('/a"b\\c\n',), f'set `cdi_spec_dirs = ["/a\\"b\\\\c\\n", "{WANTED}"]`'),
    ],
)
def test_remedy_names_the_lines(enabled: bool, folders: tuple[str, ...], lines: str) -> None:
    assert lines in remedy(MAIN, enabled, folders)


def test_remedy_of_crio_names_its_folder(tmp_path: Path) -> None:
    host = make_host(tmp_path, {})
    with serve_runtime(tmp_path, CRIO.with_config(CDISpecDirs=["/etc/cdi"]), CRIO_SOCKET):
        access = RuntimeAccess(host, HostPrograms(Path("/"), enter=False))
        found = only(cdi_findings(read_runtime(access, "", WANTED)))
    assert "in a file in /etc/crio/crio.conf.d, in table [crio.runtime], set `cdi_spec_dirs = [" in found.remedy
    assert "`systemctl restart crio`" in found.remedy


@pytest.mark.parametrize(("version", "table"), [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")])
def test_fix_writes_a_drop_in_of_the_same_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, table: str
) -> None:
    containerd = Containerd(tmp_path, monkeypatch, f"version = {version}\n", imports=True)
    fixed = containerd.fix()
    assert fixed is not None
    assert fixed.text.startswith(f"{DROP_IN} was written, but is not in use yet: version = {version}; [plugins.")
    assert fixed.remedy.startswith(f"{RESTART} on the node")
    assert f"`rm {DROP_IN}`" in fixed.remedy
    assert containerd.text(DROP_IN) == (
        "# Written by `dra-kubeletplugin check --fix`.\n"
        f"# To undo: rm {DROP_IN} && systemctl restart containerd\n"
        f'version = {version}\n[plugins."{table}"]\nenable_cdi = true\n'
    )


def test_fix_waits_for_a_restart_after_the_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd = Containerd(tmp_path, monkeypatch, "version = 3\n", imports=True)
    containerd.fix()
    before = (containerd.root / DROP_IN.lstrip("/")).stat()
    fixed = containerd.fix()
    assert fixed is not None
    assert fixed.text == "nothing was written: the configuration is right, but is not in use yet"
    assert fixed.remedy.startswith(RESTART)
    assert (containerd.root / DROP_IN.lstrip("/")).stat() == before


def test_fix_removes_a_file_without_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd = Containerd(tmp_path, monkeypatch, "version = 3\n", imports=False)
    fixed = containerd.fix()
    assert fixed is not None
    assert fixed.text == "nothing was written: the runtime reads no additional file that enables CDI"
    assert f"in {MAIN}, in table {TABLE}" in fixed.remedy
    assert not containerd.exists(FOLDER)


def test_fix_keeps_a_folder_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd = Containerd(tmp_path, monkeypatch, "version = 3\n", imports=False)
    (containerd.root / FOLDER.lstrip("/")).mkdir()
    containerd.fix()
    assert containerd.exists(FOLDER)
    assert not containerd.exists(DROP_IN)


@pytest.mark.parametrize("main", ["", "version = 1\n", "version = 'x'\n", "[[\n"])
def test_fix_writes_nothing_beside_a_file_of_unknown_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: str
) -> None:
    containerd = Containerd(tmp_path, monkeypatch, main, imports=True)
    fixed = containerd.fix()
    assert fixed is not None
    assert "nothing was written" in fixed.text
    assert not containerd.exists(FOLDER)


def test_fix_leaves_a_file_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd = Containerd(tmp_path, monkeypatch, "version = 3\n", imports=True)
    (containerd.root / FOLDER.lstrip("/")).mkdir()
    (containerd.root / DROP_IN.lstrip("/")).write_text(f"{TABLE}\nenable_cdi = false\n", encoding="utf-8")
    with pytest.raises(FixError, match="was not written by this command"):
        containerd.fix()
    assert containerd.text(DROP_IN) == f"{TABLE}\nenable_cdi = false\n"


def test_fix_leaves_generated_files_to_their_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd = Containerd(tmp_path, monkeypatch, "version = 3\n", imports=True)
    main = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    for path, text in (process(5, "containerd", "-c", main) | {main: "version = 3\n"}).items():
        file = containerd.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    fixed = containerd.fix()
    assert fixed is not None
    assert "nothing was written" in fixed.text
    assert "config.toml.tmpl" in fixed.remedy


def test_fix_without_the_runtimes_program_tells_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd = Containerd(tmp_path, monkeypatch, "version = 3\n", imports=True)
    (tmp_path / "programs/containerd").write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    fixed = containerd.fix()
    assert fixed is not None
    assert fixed.text == "nothing was written: `containerd config dump` ended with code 127: without any output"
    assert f"in {MAIN}, in table" in fixed.remedy


@pytest.mark.parametrize(
    ("program", "is_written"),
    [
        ("containerd github.com/containerd/containerd/v2 v2.3.4 1fbd70374134", True),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1", False),
    ],
)
def test_fix_asks_only_a_program_of_the_release_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, is_written: bool
) -> None:
    containerd = Containerd(tmp_path, monkeypatch, "version = 3\n", imports=True)
    script = tmp_path / "programs/containerd"
    first, rest = script.read_text(encoding="utf-8").split("\n", 1)
    script.write_text(f'{first}\n[ "$1" = --version ] && {{ echo "{program}"; exit; }}\n{rest}', encoding="utf-8")
    fixed = containerd.fix()
    assert fixed is not None
    assert containerd.exists(DROP_IN) == is_written
    refused = "nothing was written: `containerd` of the host is 1.6.20, which cannot tell what containerd 2.3.4 reads"
    assert (fixed.text == refused) == (not is_written), fixed.text


@pytest.mark.parametrize("answer", [CONTAINERD_2, RecordedAnswer("containerd", "2.3.4", {})], ids=["ready", "unknown"])
def test_fix_leaves_a_runtime_alone_that_is_ready_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: RecordedAnswer
) -> None:
    assert Containerd(tmp_path, monkeypatch, "version = 3\n", imports=True).fix(answer) is None


def test_fix_writes_a_drop_in_of_crio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path / "host", {})
    drop_in = tmp_path / "host" / CRIO_DROP_IN.lstrip("/")
    program = tmp_path / "programs/crio"
    program.parent.mkdir()
    other = "[crio.runtime]\\ncdi_spec_dirs = ['/etc/cdi']"
    program.write_text(f"#!/bin/sh\ncat '{drop_in}' || printf \"{other}\"\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    access = RuntimeAccess(host, HostPrograms(Path("/"), enter=False))
    with serve_runtime(tmp_path / "host", CRIO.with_config(CDISpecDirs=["/etc/cdi"]), CRIO_SOCKET):
        fixed = fix_runtime(access, read_runtime(access, "", WANTED))
    assert fixed is not None
    assert fixed.text.startswith(f"{CRIO_DROP_IN} was written")
    assert "`systemctl restart crio`" in fixed.remedy
    assert drop_in.read_text(encoding="utf-8").endswith(
        '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n'
    )


def test_fix_of_the_real_containerd_1_7_finds_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """containerd 1.7 prints the files that it has read, and not the patterns that named them."""
    containerd = Containerd(tmp_path, monkeypatch, "version = 2\n", imports=True)
    program = tmp_path / "programs/containerd"
    table = '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]'
    text = f'imports = ["{MAIN}"]\n{table}'
    program.write_text(f"#!/bin/sh\necho {shlex.quote(text)}\n", encoding="utf-8")
    fixed = containerd.fix(CONTAINERD_1)
    assert fixed is not None
    assert fixed.text.startswith("nothing was written")
    shutil.rmtree(containerd.root / "run")
    assert not containerd.exists(FOLDER)
