# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/install.md says where nvidia-cdi-hook is looked for."""

from kubeletplugin.containers.cdi.libraries import HOOK_FOLDERS, HOOK_NAMES

from .commands import ROOT, inline

PAGE = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")


def test_hook_page_lists_the_names_and_folders_that_are_searched() -> None:
    said = PAGE.split("\n### Without nvidia-cdi-hook\n")[1].split("If the program is elsewhere")[0]
    assert tuple(inline(said)) == (*HOOK_NAMES[1:], *HOOK_FOLDERS)
