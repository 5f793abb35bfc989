# SPDX-License-Identifier: Apache-2.0
"""DefaultPreemption and nominated pods, where the golden scenarios have no example."""

from .build import JSON, attempt, node, pod


def broken_claim() -> tuple[JSON, ...]:
    """A class whose selector cannot be evaluated for the device of node `a`, and a claim for it."""
    group = {"apiVersion": "resource.k8s.io/v1"}
    selectors = [{"cel": {"expression": "device.attributes['d.io'].missing"}}]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    request = {"name": "r", "exactly": {"deviceClassName": "broken"}}
    return (
        {**group, "kind": "DeviceClass", "metadata": {"name": "broken"}, "spec": {"selectors": selectors}},
        {
            **group,
            "kind": "ResourceSlice",
            "metadata": {"name": "a"},
            "spec": {"driver": "d.io", "pool": pool, "nodeName": "a", "devices": [{"name": "gpu"}]},
        },
        {
            **group,
            "kind": "ResourceClaim",
            "metadata": {"name": "wanted", "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        },
    )


def test_message_of_preemption_is_the_error_of_a_filter_without_the_victims() -> None:
    running = pod("low", requests={"cpu": "4"}, nodeName="a")
    claims = [{"name": "gpu", "resourceClaimName": "wanted"}]
    wanted = pod(requests={"cpu": "4"}, priority=10, resourceClaims=claims)
    found = attempt(wanted, node("a"), running, *broken_claim())
    assert found.after is not None
    assert found.after.message.startswith('preemption: running "DynamicResources" filter plugin: class broken: ')
    assert found.event == f"{found.fit_error} {found.after.message}"
    assert not found.errors


def test_nominated_pod_takes_room_before_any_attempt_is_recorded() -> None:
    nominated = pod("first", requests={"cpu": "3"}, priority=10, status={"nominatedNodeName": "a"})
    found = attempt(pod(requests={"cpu": "2"}, priority=10), node("a"), node("b"), nominated)
    assert found.fits == ("b",)
