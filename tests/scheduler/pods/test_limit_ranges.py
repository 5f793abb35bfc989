# SPDX-License-Identifier: Apache-2.0
"""LimitRange: the texts of the admission plugin LimitRanger of 1.36."""

import pytest

from dra_driver.scheduler.pods import admit_pod

from .build import JSON, pod, read

CPU = {"cpu": "1"}


def forbidden(wanted: JSON, *limits: JSON) -> str:
    limit_range = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "l", "namespace": "default"},
        "spec": {"limits": list(limits)},
    }
    return admit_pod(wanted, read(limit_range).policies()).forbidden


@pytest.mark.parametrize(
    ("item", "resources", "said"),
    [
        ({"min": CPU}, {"requests": {"cpu": "500m"}}, "minimum cpu usage per Pod is 1, but request is 500m"),
        ({"min": CPU}, {}, "minimum cpu usage per Pod is 1.  No request is specified"),
        ({"max": CPU}, {"requests": CPU}, "maximum cpu usage per Pod is 1.  No limit is specified"),
        ({"max": CPU}, {"limits": {"cpu": "2"}}, "maximum cpu usage per Pod is 1, but limit is 2"),
        (
            {"maxLimitRequestRatio": {"cpu": "1500m"}},
            {"requests": {"cpu": "300m"}, "limits": CPU},
            "cpu max limit to request ratio per Pod is 1500m, but provided ratio is 3.333333",
        ),
    ],
)
def test_violation_has_kubernetes_text(item: JSON, resources: JSON, said: str) -> None:
    wanted = pod()
    wanted["spec"]["containers"][0]["resources"] = resources
    assert forbidden(wanted, {"type": "Pod", **item}) == f'pods "p" is forbidden: {said}'


def test_equal_violations_of_several_containers_are_reported_once() -> None:
    wanted = pod(requests={"cpu": "500m"})
    wanted["spec"]["containers"].append({**wanted["spec"]["containers"][0], "name": "d"})
    said = "minimum cpu usage per Container is 1, but request is 500m"
    assert forbidden(wanted, {"type": "Container", "min": CPU}) == f'pods "p" is forbidden: {said}'


def test_different_violations_are_listed() -> None:
    wanted = pod(requests={"cpu": "500m"})
    wanted["spec"]["containers"].append({"name": "d", "resources": {"requests": {"cpu": "700m"}}})
    bound = "minimum cpu usage per Container is 1, but request is"
    said = f'pods "p" is forbidden: [{bound} 500m, {bound} 700m]'
    assert forbidden(wanted, {"type": "Container", "min": CPU}) == said
