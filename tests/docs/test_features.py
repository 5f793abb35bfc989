# SPDX-License-Identifier: Apache-2.0
"""docs/reference/features.md names the releases of feature gates, and values that the chart has."""

import re

import pytest

from dra_driver.kube.releases import NEWEST_MINOR, OLDEST_MINOR
from dra_driver.sandbox.apiserver.release import release

from .checks import setting
from .commands import ROOT

PAGE = (ROOT / "docs/reference/features.md").read_text(encoding="utf-8")
VALUES_PAGE = (ROOT / "docs/reference/values.md").read_text(encoding="utf-8")
GATES = re.findall(r"(1\.\d+ with `(\w+)`(?:, enabled by default from 1\.\d+)?)", PAGE)
VALUES = sorted(
    {
        text.partition("[")[0].partition(":")[0]
        for text in re.findall(r"`([^`]+)`", PAGE)
        if re.match(r"(policy|deviceClasses|kubeletPlugin|admissionPolicy|webhook|cleanup|podMonitor)\b", text)
    }
)


@pytest.mark.parametrize(("said", "gate"), GATES)
def test_a_gate_is_available_and_enabled_from_the_release_that_the_page_names(said: str, gate: str) -> None:
    minors = range(OLDEST_MINOR, NEWEST_MINOR + 1)
    there = next(minor for minor in minors if gate in release(minor).gates)
    on = next((minor for minor in minors if release(minor).enabled(gate)), None)
    assert said == f"1.{there} with `{gate}`" + (f", enabled by default from 1.{on}" if on else "")


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_the_page_names_is_one_of_the_chart(value: str) -> None:
    if value.startswith("policy."):
        setting(value)
    else:
        assert re.search(rf"\| `{re.escape(value)}[.`]", VALUES_PAGE)


def test_every_gate_that_changes_what_is_published_is_on_the_page() -> None:
    section = (ROOT / "docs/reference/devices.md").read_text(encoding="utf-8").split("\n## Kubernetes versions\n")[1]
    assert set(re.findall(r"`(DRA\w+)`", section)) <= {gate for _, gate in GATES}
