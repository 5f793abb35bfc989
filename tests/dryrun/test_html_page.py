# SPDX-License-Identifier: Apache-2.0
"""The page as a document: complete, escaped, self-contained, accessible."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from dra_driver.dryrun.changes import Suggestion
from dra_driver.dryrun.report import Report, to_html
from dra_driver.dryrun.report.page import Html, join, tag

from .reports import PROFILE, claim, every_kind, report

HOSTILE = "<script>alert(1)</script>\"'&"
_VOID = {"meta", "link"}


class Page(HTMLParser):
    """The elements of a page. Fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        assert len(dict(attributes)) == len(attributes)
        self.elements.append((name, dict(attributes)))
        if name not in _VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for element, attributes in self.elements if element == name]

    def within(self, name: str) -> list[str]:
        return [text for element, text in self.texts if element == name]


@pytest.fixture(scope="module")
def every() -> Report:
    return every_kind()


@pytest.fixture(scope="module")
def page(every: Report) -> Page:
    return Page(to_html(every))


def test_the_page_needs_nothing_from_anywhere(page: Page) -> None:
    assert not {"script", "img", "iframe", "object"} & {name for name, _ in page.elements}
    links = [value for _, attributes in page.elements for key in ("src", "href") if (value := attributes.get(key))]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "url(" not in (style := "".join(page.within("style")))
    assert "@import" not in style
    (policy,) = [one["content"] for one in page.named("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'")


def test_page_has_a_language_headings_and_targets(page: Page) -> None:
    assert page.named("html") == [{"lang": "en"}]
    levels = [int(name[1]) for name, _ in page.elements if name in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [str(attributes["id"]) for _, attributes in page.elements if "id" in attributes]
    assert max(Counter(ids).values()) == 1
    targets = {str(one["href"])[1:] for one in page.named("a")} | {
        str(attributes["aria-labelledby"]) for _, attributes in page.elements if "aria-labelledby" in attributes
    }
    assert targets <= set(ids)
    assert all(one.get("scope") == "col" for one in page.named("th"))
    assert len(page.named("caption")) == len(page.named("table")) > 0
    assert all("tabindex" in one and one.get("aria-label") for one in page.named("div") if one.get("class") == "scroll")


def test_every_demand_has_its_answer(page: Page) -> None:
    assert page.within("h1") == ["2 of 4 demands fit"]
    assert [text.strip() for text in page.within("h2")] == [
        f"ResourceClaim ns/{name}" for name in ("whole", "halves", "crowded", "broken")
    ]
    cells = page.within("td")
    assert {"gpu.nvidia.com", "mig.nvidia.com", f"{PROFILE} == '3g.40gb'"} <= set(cells), "what is asked for"
    assert "gpu-0-mig-3g40gb-9-0" in cells
    assert any("profile == '7g.80gb'" in text for text in cells)
    assert any(text.startswith("ask for 6 instead of 7") for text in page.within("li"))
    assert any("nothing" in text for text in page.within("p")), "the error of the expression"
    assert ["open" in one for one in page.named("details")].count(True) == 2, "why it does not fit on the closest node"


def test_memory_slices_are_as_wide_as_they_are(page: Page) -> None:
    boxes = [one for one in page.named("span") if str(one.get("class")).startswith("box")]
    halves = [one for one in boxes if one["class"] == "box proposed" and one.get("style") == "grid-column:span 4"]
    assert len(halves) == 3
    rows = [one for one in page.named("span") if one.get("class") == "slices"]
    assert {"repeat(8," in str(one["style"]) for one in rows} == {True, False}


def test_names_and_values_are_text_and_never_markup() -> None:
    text = to_html(report(claim(HOSTILE, f"{PROFILE} == '{'<b>'}' || {PROFILE} == '3g.40gb'"), where=HOSTILE))
    page = Page(text)
    assert page.named("script") == []
    assert HOSTILE in page.within("dd")
    assert any(HOSTILE in one for one in page.within("td"))
    assert any(HOSTILE in one for one in page.within("h2"))


def test_assumptions_and_defects_of_the_scheduler_are_told(every: Report) -> None:
    first = every.answers[0]
    answer = replace(first, verdict=replace(first.verdict, defect=Suggestion("it errs", "h100x8")))
    page = Page(to_html(replace(every, assumptions=("a drain",), answers=(answer,))))
    assert "a drain" in page.within("dd")
    assert "it errs" in page.within("p")
    assert page.within("h1") == ["ResourceClaim ns/whole fits"]
    assert page.named("nav") == [], "one demand needs no list"


def test_elements_escape_what_is_not_markup() -> None:
    assert (
        tag("p", "<b>", tag("b", "&"), class_='"', open_=True, id_="")
        == '<p class="&quot;" open>&lt;b&gt;<b>&amp;</b></p>'
    )
    assert tag("meta", http_equiv="x") == '<meta http-equiv="x">'
    assert join("<", Html("<br>")) == "&lt;<br>"
