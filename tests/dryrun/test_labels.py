# SPDX-License-Identifier: Apache-2.0
"""Label selectors of the command line, in all forms of kubectl."""

import pytest

from dra_driver.dryrun.labels import parse_selector
from dra_driver.process.command import InputError

LABELS = {"pool": "a", "example.com/zone": "b", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("pool=a", True),
        ("pool==a", True),
        ("pool = b", False),
        ("pool!=b", True),
        ("none!=b", True),
        ("pool in (a,b)", True),
        ("pool in (b)", False),
        ("pool notin (b, c)", True),
        ("pool", True),
        ("none", False),
        ("!none", True),
        ("!pool", False),
        ("empty=", True),
        ("pool=a,example.com/zone in (b,c),!none", True),
        ("pool=a,example.com/zone=c", False),
    ],
)
def test_selector_matches_as_for_kubectl(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", [",", "a=b,", "a=b=c", "a in b", "a in (b", "=b", "a!b", "-a=b", "a=-b", "a b"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^-l "):
        parse_selector(text)
