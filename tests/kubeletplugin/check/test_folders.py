# SPDX-License-Identifier: Apache-2.0
"""kubelet's folders, the runtime's, and socket paths."""

from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.check.finding import Level
from kubeletplugin.check.folders import FolderFacts, folder_findings, read_folders
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
    facts = read_folders(host, Path("/registry"), Path("/plugins"), Path("/var/run/cdi"), [Path("/plugins/dra.sock")])
    assert (facts.registry.exists, facts.plugins.exists, facts.cdi.exists) == (False, True, False)
    assert facts.sockets == ("/plugins/dra.sock",)
