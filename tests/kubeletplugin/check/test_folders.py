# SPDX-License-Identifier: Apache-2.0
"""kubelet's folders, the runtime's, and socket paths."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.check.folders import (
    PLUGINS,
    PLUGINS_VALUE,
    REGISTRAR_VALUE,
    cdi_finding,
    folder_finding,
    folder_findings,
    socket_finding,
)
from kubeletplugin.check.host import Folder

from .support import levels, make_host

THERE = Folder("/var/lib/kubelet/plugins", exists=True)


@pytest.mark.parametrize(
    ("folder", "level"),
    [
        (THERE, "pass"),
        (replace(THERE, problem=None), "pass"),  # read-only from here, writable for the plugin
        (replace(THERE, exists=False), "fail"),
        (replace(THERE, problem="not writable for this process"), "fail"),
    ],
)
def test_a_folder_must_be_there_and_writable(folder: Folder, level: str) -> None:
    assert str(folder_finding(PLUGINS, folder, "start kubelet").level) == level


@pytest.mark.parametrize(
    ("folder", "level"),
    [
        (THERE, "pass"),
        (replace(THERE, exists=False), "pass"),  # it is made
        (replace(THERE, exists=False, problem="not a folder"), "fail"),
    ],
)
def test_the_folder_of_specs_need_not_be_there(folder: Folder, level: str) -> None:
    assert str(cdi_finding(folder).level) == level


@pytest.mark.parametrize(
    ("paths", "level"),
    [
        (["/" + "x" * 106], "pass"),
        (["/short", "/" + "x" * 107], "fail"),
        (["/" + "ü" * 54], "fail"),  # bytes count, not letters
    ],
)
def test_the_paths_of_sockets_are_short(paths: list[str], level: str) -> None:
    assert str(socket_finding(paths).level) == level


def test_folders_are_those_of_the_host(tmp_path: Path) -> None:
    host = make_host(tmp_path, {"/plugins/file": ""})
    paths = (Path("/registry"), Path("/plugins/own"), Path("/var/run/cdi"), [Path("/plugins/dra.sock")])
    registry, plugins, cdi, sockets = folder_findings(host, *paths, root="")
    assert levels([registry]) == [("kubelet plugin registry", "fail")]
    assert (plugins.text, cdi.text) == ("/plugins", "/var/run/cdi does not exist yet; the plugin creates it")
    assert sockets.text == "the longest has 17 of 107 bytes"


def test_existing_folder_of_the_driver_must_be_writable(tmp_path: Path) -> None:
    own = Path("/plugins/gpu.nvidia.com")
    host = make_host(tmp_path, {"/plugins/file": ""})

    def plugins() -> str:
        return list(folder_findings(host, Path("/registry"), own, Path("/cdi"), [own / "dra.sock"], root=""))[1].text

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
from kubeletplugin.check.folders import folder_findings
from kubeletplugin.check.host import Host
plugins = Path(sys.argv[1])
own = plugins / "gpu.nvidia.com"
for one in folder_findings(Host(Path("/")), plugins, own, own, [own], ""):
    print(one.check, one.level, sep=": ")
"""


@pytest.mark.node
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
    findings = folder_findings(host, registry, plugins / "own", Path("/var/run/cdi"), [Path("/short")], root)
    found = [one for one in findings if one.check in ("kubelet plugin registry", "kubelet plugins")]
    assert [one for _, one in levels(found)] == level
    for one in found:
        assert not one.remedy or (
            f"{REGISTRAR_VALUE}={root}/plugins_registry,{PLUGINS_VALUE}={root}/plugins;" in one.remedy
        )
