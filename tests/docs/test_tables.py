# SPDX-License-Identifier: Apache-2.0
"""docs/devices.md says what the code does."""

from dra_driver.gpu.policy.reading import parse_policy
from tests.docs.tables import ATTRIBUTES, CAPACITIES, DOCUMENT, _family, filled, published


def test_the_tables_are_those_that_the_code_makes() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert filled(text) == text, "run python -m tests.docs.tables"


def test_every_attribute_and_capacity_is_explained_and_no_other() -> None:
    devices = [device for _, device in published()]
    assert {name for device in devices for name in device.attributes} == set(ATTRIBUTES)
    assert {_family(name) for device in devices for name in device.capacity} == set(CAPACITIES)


def test_the_policy_that_is_shown_can_be_used() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (shown,) = (block.split("```", 1)[0] for block in text.split("```yaml\n")[1:])
    policy = parse_policy(shown)
    assert len(policy.rules) >= 3
