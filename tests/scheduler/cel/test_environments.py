# SPDX-License-Identifier: Apache-2.0
"""What each Kubernetes release knows, for stored expressions and for new ones."""

import pytest

from dra_driver.scheduler.cel import RELEASES, CompileError, Environment, compile_selector

SINCE = {
    "cel.bind(a, device.attributes['d'], a.x == 1)": (1.32, 1.32),
    "['a'].exists(i, v, v == 'a')": (1.32, 1.33),
    "semver('v1', true).major() == 1": (1.33, 1.34),
    "['a'].first().hasValue()": (1.33, 1.33),
    "[2, 1].sort() == [1, 2]": (1.34, 1.35),
    "device.allowMultipleAllocations": (1.34, 1.34),
    "device.attributes['d'].x.includes(1)": (1.36, 1.38),
}
"""Expressions with the release that first takes them as stored ones, and as new ones (with default gates)."""


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("expression", SINCE)
@pytest.mark.parametrize("stored", [True, False])
def test_release_accepts_only_functions_that_it_has(release: str, expression: str, stored: bool) -> None:
    known = float(release) >= SINCE[expression][0 if stored else 1]
    environment = Environment(release, stored=stored)
    if known:
        compile_selector(expression, environment)
    else:
        with pytest.raises(CompileError):
            compile_selector(expression, environment)


def test_gates_change_what_new_expressions_may_use() -> None:
    compile_selector("device.allowMultipleAllocations", Environment("1.36", consumable_capacity=False))
    with pytest.raises(CompileError, match="undefined field"):
        compile_selector(
            "device.allowMultipleAllocations", Environment("1.36", consumable_capacity=False, stored=False)
        )
    compile_selector(
        "device.attributes['d'].x.includes(1)", Environment("1.36", list_type_attributes=True, stored=False)
    )


def test_attributes_that_may_be_lists_are_dynamic() -> None:
    expression = "device.attributes['d'].x.exists(i, i == 1)"
    with pytest.raises(CompileError, match="macros cannot loop over"):
        compile_selector(expression, Environment("1.36"))
    compile_selector(expression, Environment("1.36", list_type_attributes=True))


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(ValueError, match="not supported"):
        Environment("1.31")
