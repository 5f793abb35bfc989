# SPDX-License-Identifier: Apache-2.0
"""Files that docs/contributing.md and docs/architecture.md name exist, links lead to pages and sections that exist, and
every page is linked.
"""

import re
from pathlib import Path

import pytest

from .commands import PAGES, ROOT, inline

NAMING = (ROOT / "docs/architecture.md", ROOT / "docs/contributing.md")
PATH = re.compile(r"(dra_driver|controller|kubeletplugin|charts|tests|docs)/[\w./-]*|[\w-]+\.(toml|lock)")


@pytest.mark.parametrize("page", NAMING, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = {text for text in inline(page.read_text(encoding="utf-8")) if PATH.fullmatch(text)}
    assert len(named) > 20
    assert {text for text in named if not (ROOT / text).exists()} == set()


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_link_to_a_section_leads_to_a_heading() -> None:
    for page in PAGES:
        for target, section in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)", page.read_text(encoding="utf-8")):
            named = (page.parent / target).read_text(encoding="utf-8") if target else page.read_text(encoding="utf-8")
            assert section in map(anchor, re.findall(r"^#+ (.+)$", named, re.MULTILINE)), f"{page.name}: #{section}"


def anchor(heading: str) -> str:
    """What GitHub calls a section."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    }
    assert [page.name for page in PAGES if page.name != "README.md" and page.resolve() not in linked] == []
