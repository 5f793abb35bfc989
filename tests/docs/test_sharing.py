# SPDX-License-Identifier: Apache-2.0
"""docs/sharing.md quotes what users see. (Its manifests and commands: test_commands.)"""

from tests.test_troubleshooting import pattern, templates

from .commands import ROOT, blocks

PAGE = (ROOT / "docs/sharing.md").read_text(encoding="utf-8")


def test_the_refusal_that_is_quoted_is_what_the_plugin_says() -> None:
    (quoted,) = (content.strip() for language, _, content in blocks(PAGE) if not language)
    path, _, text = quoted.partition(": ")
    assert path == "spec.devices.config[0].opaque.parameters.sharing.strategy"
    assert any(pattern(text).fullmatch(one) for one in templates()), text
