# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/install.md says where nvidia-cdi-hook is looked for."""

from kubeletplugin.containers.cdi.libraries import HOOK_FOLDERS, HOOK_NAMES

from .commands import ROOT, inline

PAGE = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")


def test_what_is_named_is_where_it_is_looked_for_and_what_is_taken_instead() -> None:
    said = PAGE.split("\n### Without nvidia-cdi-hook\n")[1].split("If the program is elsewhere")[0]
    assert tuple(inline(said)) == (*HOOK_NAMES[1:], *HOOK_FOLDERS)
