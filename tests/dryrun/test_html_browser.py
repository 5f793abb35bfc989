# SPDX-License-Identifier: Apache-2.0
"""The page of `dra-dryrun fit` in a real browser."""

import struct
from pathlib import Path

import pytest

from dra_driver.dryrun.report import to_html
from tests.support.browser import NEEDS_BROWSER, SCREENS, WIDTHS, seen

from .reports import PROFILE, claim, report

pytestmark = [pytest.mark.node, NEEDS_BROWSER]

HOSTILE = "<script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a claim that fits, one that does not, and a name that would like to be a script."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    crowded = claim("crowded", f"{PROFILE} == '7g.80gb'", 9)
    hostile = claim(HOSTILE, f"{PROFILE} == '3g.40gb' || {PROFILE} == '{HOSTILE}'", 3)
    small = claim("a-name-that-is-rather-long-for-a-box", f"{PROFILE} == '1g.10gb'")
    path.write_text(to_html(report(hostile, small, crowded, where=HOSTILE)), encoding="utf-8")
    return path


def test_the_page_shows_without_network_scripts_or_complaints(address: str, page: Path) -> None:
    shown = seen(address, page, picture=True)
    assert shown.requests == [page.as_uri()]
    assert shown.complaints == []
    assert shown.facts["hacked"] == "undefined"
    assert shown.facts["title"] == "dra-dryrun: 2 of 3 demands fit"
    assert shown.facts["demands"] == 3
    assert f"ns/{HOSTILE}" in shown.facts["shown"], "as text"
    kind, width, height = struct.unpack(">4sII", shown.picture[12:24])
    assert (kind, width) == (b"IHDR", WIDTHS["laptop"])
    assert height >= 800
    assert len(shown.picture) > 20_000, "an empty page compresses to less"


def test_the_page_can_be_read_on_every_screen(address: str, page: Path, subtests: pytest.Subtests) -> None:
    for scheme, width in SCREENS:
        with subtests.test(scheme=scheme, width=width):
            facts = seen(address, page, scheme, width).facts
            assert facts["width"] <= width, "the page itself does not scroll sideways"
            assert facts["sideways"] == 0 or width > 400, "no table or picture has to be scrolled on a phone"
            assert facts["contrast"] >= 4.5, "WCAG 2.2, 1.4.3 (AA)"


def test_the_page_follows_the_readers_choice_of_colours(address: str, page: Path) -> None:
    light, dark = (seen(address, page, scheme).facts["background"] for scheme in ("light", "dark"))
    assert light != dark
