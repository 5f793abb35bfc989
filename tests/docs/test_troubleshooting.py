# SPDX-License-Identifier: Apache-2.0
"""The tables about troubleshooting quote texts that exist, and every Event that we write is in one of them.

Kubernetes' own texts are those that the sandbox has taken over. (Headings: tests/test_troubleshooting)
"""

import re

import pytest

from tests.test_troubleshooting import PAGES, candidates, pattern

from .commands import ROOT
from .events import event_reasons


def first_column(page: str, heading: str) -> list[str]:
    """The quoted texts that the rows of the tables below a heading begin with."""
    section = PAGES[page].split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)`.* \|", section, re.MULTILINE)


LEFT_OUT = first_column("devices-are-missing", "`left out: …: …`")
PENDING = [
    text for text in first_column("README", "Pods stay Pending") if text != "invalid resource pools were encountered"
]
POLICIES = (ROOT / "charts/dra-driver-gpu/templates/admission-policy.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", LEFT_OUT)
def test_a_reason_for_not_publishing_is_one_that_the_controller_gives(text: str) -> None:
    assert any(pattern(text).fullmatch(one) for one in candidates(text)), text


def test_the_refusals_of_slices_are_those_of_the_admission_policy() -> None:
    section = PAGES["devices-are-missing"].split("\n## `slice …: …`\n")[1].split("\n## ")[0]
    errors = section.split("- An error of the API server: ")[1].split("`admission webhook …")[0]
    quoted = [" ".join(text.split()) for text in re.findall(r"`([^`]{30,})`", errors)]
    assert len(quoted) == 2
    assert [text for text in quoted if text not in POLICIES] == []


@pytest.mark.parametrize("text", PENDING)
def test_a_reason_for_not_scheduling_is_one_that_the_sandbox_gives_too(text: str) -> None:
    assert any(pattern(text).search(one) for one in candidates(text)), text


def test_every_event_is_explained_and_of_ours_no_other() -> None:
    ours, theirs = PAGES["events"].split("\nOf Kubernetes, ")
    reasons = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
    assert set(reasons.findall(ours)) == event_reasons("kubeletplugin") | event_reasons("controller")
    assert set(reasons.findall(theirs)) >= event_reasons("dra_driver/sandbox")
