# SPDX-License-Identifier: Apache-2.0
"""kubelet's folders, the runtime's, and socket paths."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.check.finding import Level
from kubeletplugin.check.folders import PLUGINS_VALUE, REGISTRAR_VALUE, FolderFacts, folder_findings, read_folders
from kubeletplugin.check.host import Folder

from .support import levels, make_host, of_level

GOOD = FolderFacts(
    Folder("/var/lib/kubelet/plugins_registry", exists=True),
    Folder("/var/lib/kubelet/plugins", exists=True),
    Folder("/var/run/cdi", exists=True),
    ("/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock",),
)


def test_folders_that_can_be_written_to_pass() -> None:
    assert {level for _, level in levels(folder_findings(GOOD))} == {"pass"}


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ({"registry": replace(GOOD.registry, exists=False)}, ["kubelet plugin registry"]),
        ({"plugins": replace(GOOD.plugins, exists=False)}, ["kubelet plugins"]),
        ({"plugins": replace(GOOD.plugins, problem="not writable for this process")}, ["kubelet plugins"]),
        ({"cdi": replace(GOOD.cdi, exists=False, problem="not a folder")}, ["cdi folder"]),
        ({"cdi": replace(GOOD.cdi, exists=False)}, []),  # it is made
        ({"registry": replace(GOOD.registry, problem=None)}, []),  # read-only from here, writable for the plugin
        ({"sockets": ("/" + "x" * 106,)}, []),
        ({"sockets": ("/short", "/" + "x" * 107)}, ["socket paths"]),
        ({"sockets": ("/" + "ü" * 54,)}, ["socket paths"]),  # bytes count, not letters
    ],
)
def test_what_fails(change: dict[str, object], failing: list[str]) -> None:
    facts = replace(GOOD, **change)  # type: ignore[arg-type]
    assert of_level(folder_findings(facts), Level.FAIL) == failing


def test_folders_are_those_of_the_host(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/plugins/file": ""})
    facts = read_folders(
        host, Path("/registry"), Path("/plugins/own"), Path("/var/run/cdi"), [Path("/plugins/dra.sock")], root=""
    )
    assert (facts.registry.exists, facts.plugins.exists, facts.cdi.exists) == (False, True, False)
    assert facts.sockets == ("/plugins/dra.sock",)
    assert facts.elsewhere == frozenset()


def test_what_must_be_writable_is_the_drivers_own_folder_once_it_is_there(tmp_path: Path) -> None:
    own = Path("/plugins/gpu.nvidia.com")
    host = make_host(tmp_path, {"/plugins/file": ""})

    def plugins() -> str:
        return read_folders(host, Path("/registry"), own, Path("/cdi"), [own / "dra.sock"], root="").plugins.path

    assert plugins() == "/plugins"
    host.here(str(own)).mkdir()
    assert plugins() == "/plugins/gpu.nvidia.com"


IN_A_CONTAINER = """
mount --bind "$1" "$1"
mount --bind "$1/gpu.nvidia.com" "$1/gpu.nvidia.com"
mount -o remount,bind,ro "$1"
shift
exec "$@"
"""
LOOK = """
import sys
from pathlib import Path
from kubeletplugin.check.folders import folder_findings, read_folders
from kubeletplugin.check.host import Host
plugins = Path(sys.argv[1])
own = plugins / "gpu.nvidia.com"
for one in folder_findings(read_folders(Host(Path("/")), plugins, own, own, [own], "")):
    print(one.check, one.level, sep=": ")
"""


def test_a_container_may_have_nothing_of_plugins_but_the_drivers_folder(tmp_path: Path) -> None:
    (tmp_path / "gpu.nvidia.com").mkdir()
    container = ["unshare", "--mount", "sh", "-euc", IN_A_CONTAINER, "sh", str(tmp_path)]
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this process may not mount")
    command = [*container, sys.executable, "-c", LOOK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[:2] == ["kubelet plugin registry: fail", "kubelet plugins: pass"]


@pytest.mark.parametrize(
    ("root", "level"),
    [
        ("", ["pass", "pass"]),
        ("/var/lib/kubelet", ["pass", "pass"]),
        ("/var/lib/kubelet/", ["pass", "pass"]),
        ("/data/linked", ["pass", "pass"]),
        ("/data/kubelet", ["fail", "warn"]),
    ],
)
def test_folders_must_be_where_kubelet_has_its_own(tmp_path: Path, root: str, level: list[str]) -> None:
    registry, plugins = Path("/var/lib/kubelet/plugins_registry"), Path("/var/lib/kubelet/plugins")
    host = make_host(tmp_path, {f"{registry}/file": "", f"{plugins}/file": "", "/data/file": ""})
    (tmp_path / "data/linked").symlink_to("/var/lib/kubelet")
    facts = read_folders(host, registry, plugins / "own", Path("/var/run/cdi"), [Path("/short")], root)
    found = [one for one in folder_findings(facts) if one.check in ("kubelet plugin registry", "kubelet plugins")]
    assert [one for _, one in levels(found)] == level
    for one in found:
        assert not one.remedy or (
            f"{REGISTRAR_VALUE}={root}/plugins_registry,{PLUGINS_VALUE}={root}/plugins;" in one.remedy
        )
