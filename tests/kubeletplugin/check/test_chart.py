# SPDX-License-Identifier: Apache-2.0
"""What the check asks for is what the chart gives, and what it names in the chart is there."""

from collections.abc import Iterable
from functools import reduce

import pytest

from kubeletplugin.check.cluster import PERMITTED, WANTED, Permission
from kubeletplugin.check.folders import PLUGINS_VALUE, REGISTRAR_VALUE

pytest.importorskip("helm_python")

from tests.charts.rendering import JSON, chart, find, render

Right = tuple[str, str, str, str]


def given(values: JSON) -> set[Right]:
    """(group, resource, name, verb) of all that the chart gives to a node's pod."""
    return {
        (group, resource, name, verb)
        for rule in find(render(values), "ClusterRole", "kubeletplugin")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def asked(permissions: Iterable[Permission]) -> set[Right]:
    """The same of what is asked for."""
    return {(one.group, one.resource, one.name, verb) for one in permissions for verb in one.verbs}


def test_the_permissions_that_are_asked_for_are_those_that_the_chart_gives() -> None:
    assert asked((*PERMITTED, *WANTED)) == given({})


def test_required_permissions_are_given_with_every_configuration() -> None:
    less = given({"kubeletPlugin": {"claimStatus": False}})
    assert asked(PERMITTED) <= less
    assert asked((*PERMITTED, *WANTED)) - less == asked(
        one for one in WANTED if one.resource.startswith("resourceclaims/")
    )


@pytest.mark.parametrize(
    "value", [REGISTRAR_VALUE, PLUGINS_VALUE, "kubeletPlugin.cdiRoot", "nvidiaDriverRoot", "nvidiaCDIHookPath"]
)
def test_a_value_that_a_remedy_names_is_one_of_the_chart(value: str) -> None:
    values: JSON = chart().values
    assert isinstance(reduce(lambda inner, key: inner[key], value.split("."), values), str)
