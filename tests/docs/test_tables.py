# SPDX-License-Identifier: Apache-2.0
"""The tables of the documentation are those that the code makes, and the policy that a page shows can be used."""

from pathlib import Path

import pytest

from dra_driver.gpu.policy.parse import parse_policy
from tests.docs.tables import ATTRIBUTES, CAPACITIES, DOCUMENTS, _family, filled, published

from .commands import ROOT


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_tables_are_those_that_the_code_makes(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert filled(text) == text, "run python -m tests.docs.tables"


def test_every_attribute_and_capacity_is_explained_and_no_other() -> None:
    devices = [device for _, device in published()]
    assert {_family(name) for device in devices for name in device.attributes} == set(ATTRIBUTES)
    assert {_family(name) for device in devices for name in device.capacity} == set(CAPACITIES)


def test_the_policy_that_is_shown_can_be_used() -> None:
    text = (ROOT / "docs/reference/policy.md").read_text(encoding="utf-8")
    shown, *_ = (block.split("```", 1)[0] for block in text.split("```yaml\n")[1:])
    policy = parse_policy(shown)
    assert len(policy.rules) >= 3
