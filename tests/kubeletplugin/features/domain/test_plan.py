# SPDX-License-Identifier: Apache-2.0
"""From a claim to its plan, without a node and an API server."""

from dataclasses import replace
from typing import Any

import pytest

from dra_driver.domains.names import DRIVER
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import V1, decode_claim
from kubeletplugin.claims.model import ClaimRef, State
from kubeletplugin.errors import NewerVersionError, PrepareError
from kubeletplugin.features.domain.plan import DomainDevice, DomainPlan, plan_claim
from kubeletplugin.features.domain.records import DomainRecord, decode, encode

from .domains import POOL, config

DOMAIN, OTHER = "6e1b3f8e-0c1d-4d1c-8b0a-111111111111", "6e1b3f8e-0c1d-4d1c-8b0a-222222222222"
REF = ClaimRef("team", "claim", "u1")
DAEMON = "ComputeDomainDaemonConfig"


def claim(devices: dict[str, str], *configs: dict[str, Any], **result: Any) -> ResourceClaim:
    """A claim with a device for each request."""
    results = [
        {"request": request, "driver": DRIVER, "pool": POOL, "device": device, **result}
        for request, device in devices.items()
    ]
    others = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": POOL, "device": "gpu-0"}]
    allocation = {"devices": {"results": results + others, "config": list(configs)}}
    meta = {"name": "claim", "namespace": "team", "uid": "u1"}
    return decode_claim({"metadata": meta, "spec": {}, "status": {"allocation": allocation}}, V1)


def of_class(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "source": "FromClass"}


def of(entry: dict[str, Any], *requests: str) -> dict[str, Any]:
    return {**entry, "requests": list(requests)}


ONE = DomainPlan(REF, POOL, DOMAIN, (DomainDevice("channel-0", "a"),))


@pytest.mark.parametrize(
    ("planned", "expected"),
    [
        (claim({"a": "channel-0"}, config(DOMAIN)), ONE),
        (claim({"a": "channel-0"}, config(DOMAIN, allocationMode="All")), replace(ONE, all_channels=True)),
        (claim({"a": "channel-0"}, of_class(config(OTHER)), config(DOMAIN)), ONE),  # the claim's own takes precedence
        (claim({"a": "channel-0"}, config(OTHER), config(DOMAIN)), ONE),
        (claim({"a": "channel-0"}, of_class(config(DOMAIN))), ONE),
        (claim({"a": "channel-0"}, of(config(DOMAIN), "a"), of(config(OTHER), "b")), ONE),
        (claim({"a": "channel-0"}, config(DOMAIN), config(OTHER, DAEMON)), ONE),  # for daemons only
        (
            claim({"a": "channel-0-3", "b/first": "channel-0"}, config(DOMAIN), shareID="5e0f"),
            replace(ONE, devices=(DomainDevice("channel-0-3", "a", "5e0f"), DomainDevice("channel-0", "b", "5e0f"))),
        ),
        (
            claim({"a": "daemon-0"}, config(DOMAIN, DAEMON)),
            DomainPlan(REF, POOL, DOMAIN, (DomainDevice("daemon-0", "a"),), is_daemon=True),
        ),
        (
            claim({"a": "daemon-0"}, config(DOMAIN, DAEMON), shareID="5e0f"),
            DomainPlan(REF, POOL, DOMAIN, (DomainDevice("daemon-0", "a", "5e0f"),), is_daemon=True),
        ),
    ],
)
def test_a_plan_follows_from_allocation_and_configuration(planned: ResourceClaim, expected: DomainPlan) -> None:
    plan = plan_claim(REF, planned, POOL)
    assert plan == expected
    record = DomainRecord(State.PREPARING, "boot", replace(plan, clique="c.1", domain_name="d"))
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    ("planned", "error"),
    [
        (claim({}, config(DOMAIN)), "has no device of driver compute-domain.nvidia.com"),
        (
            claim({"a": "channel-0"}),
            "spec.devices.config: device channel-0 of request 'a' needs a ComputeDomainChannel",
        ),
        (claim({"a": "channel-0"}, config("")), r"config\[0\].opaque.parameters.domainID: cannot be empty"),
        (claim({"a": "channel-0"}, config("../../etc")), "domainID '../../etc' is not the UID of a ComputeDomain"),
        (claim({"a": "channel-0"}, config(DOMAIN, channels=4)), r"config\[0\].opaque.parameters.channels: "),
        (claim({"a": "channel-0"}, config(DOMAIN, allocationMode="Some")), "allocationMode: must be Single or All"),
        (claim({"a": "channel-0"}, config(DOMAIN, "GpuConfig")), r"parameters.kind: 'GpuConfig' is not supported"),
        (claim({"a": "channel-0"}, of(config(DOMAIN, DAEMON), "a")), "take a ComputeDomainDaemonConfig: use a Compute"),
        (claim({"a": "channel-7"}, config(DOMAIN)), "there is no device channel-7 on node node-a"),
        (claim({"a": "channel-0"}, config(DOMAIN), pool="node-b"), "pool node-b, which is not on this node"),
        (
            claim({"a": "channel-0", "b": "channel-0-1"}, of(config(DOMAIN), "a"), of(config(OTHER), "b")),
            "has devices of several ComputeDomains",
        ),
        (
            claim({"a": "channel-0", "b": "daemon-0"}, config(DOMAIN), config(DOMAIN, DAEMON)),
            "or a daemon and channels",
        ),
    ],
)
def test_what_cannot_be_planned_is_named(planned: ResourceClaim, error: str) -> None:
    with pytest.raises(PrepareError, match=error):
        plan_claim(REF, planned, POOL)


def test_records_are_read_strictly() -> None:
    written = encode(DomainRecord(State.PREPARED, "boot", ONE))
    with pytest.raises(NewerVersionError, match="it has version 2, and this plugin supports 1"):
        decode(written.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(ValueError, match="'shelf' is unknown"):
        decode(written.replace(b'"channel"', b'"shelf"'))
    with pytest.raises(ValueError, match="more"):
        decode(written.replace(b'"version"', b'"more": 1, "version"'))
