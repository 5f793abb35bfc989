# SPDX-License-Identifier: Apache-2.0
"""Files and modules that the pages for developers name exist, links lead to pages and sections that exist, and each
page is linked.
"""

import re
from pathlib import Path

import pytest

from .commands import PAGES, ROOT, inline

NAMING = [
    ROOT / f"docs/{name}.md"
    for name in (
        "explanation/architecture",
        "explanation/cel",
        "explanation/data-flows",
        "explanation/life-of-a-claim",
        "how-to/add",
        "how-to/run-the-tests",
        "reference/where-to-change",
    )
]
PATH = re.compile(r"(dra_driver|controller|kubeletplugin|charts|tests|docs)/[\w./-]*|[\w-]+\.(toml|lock)")
MODULE = re.compile(r"[a-z_]\w*(\.\w+)+")
PARENTS = (ROOT, ROOT / "dra_driver", ROOT / "kubeletplugin")
FILES_AND_DOMAINS = (".com", ".json", ".py", ".toml", ".yaml", ".yml")
BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
FIELDS = {"status.devices", "kubernetes.DRADevice"}


@pytest.mark.parametrize("page", NAMING, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = {text for text in inline(page.read_text(encoding="utf-8")) if PATH.fullmatch(text)}
    assert named
    assert {text for text in named if not (ROOT / text).exists()} == set()


@pytest.mark.parametrize("page", [*NAMING, *sorted((ROOT / "docs/adr").glob("*.md"))], ids=lambda path: path.name)
def test_every_module_that_is_named_exists(page: Path) -> None:
    named = {text for text in inline(page.read_text(encoding="utf-8")) if MODULE.fullmatch(text)}
    modules = {text for text in named - FIELDS if not text.endswith(FILES_AND_DOMAINS)}
    assert {text for text in modules if not any(has(parent, text) for parent in PARENTS)} == set()


def has(parent: Path, dotted: str) -> bool:
    """Whether there is a package or module of this name below `parent`, or one that contains the last part."""
    *modules, last = dotted.split(".")
    folder = parent.joinpath(*modules)
    if (folder / last).is_dir() or (folder / f"{last}.py").exists():
        return True
    module = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return module.exists() and re.search(rf"\b{last}\b", module.read_text(encoding="utf-8")) is not None


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


def test_the_site_lists_every_page() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
    pages = (ROOT / "docs").rglob("*.md")
    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "docs")) for path in pages)


def test_the_index_links_to_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    folders = ("adr/", "how-to/troubleshooting/")
    linked = {page for page in pages if f"]({page})" in index}
    assert {page for page in pages - linked - {"README.md"} if not page.startswith(folders)} == set()


LONGEST_LINE = 132
MOST_LINES = 200
WRITTEN = [path for path in PAGES if "<!-- Made from " not in path.read_text(encoding="utf-8")]
"""The pages that are not generated as a whole."""


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: path.name)
def test_text_of_a_page_is_wrapped(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    kept = ("|", "#", "<!--", "[")
    lines = [line for line in text.splitlines() if not line.startswith(kept)]
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: path.name)
def test_a_page_is_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    written = re.sub(r"<!-- table: \w+ -->\n.*?<!-- end -->", "", text, flags=re.DOTALL)
    assert len(written.splitlines()) <= MOST_LINES, "one topic a page: split it"
