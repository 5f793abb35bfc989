# SPDX-License-Identifier: Apache-2.0
"""From a claim to its plan, without a node and an API server, and the records of plans."""

import json
from dataclasses import replace
from typing import Any

import pytest

from dra_driver.domains.names import DRIVER
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import V1, decode_claim
from kubeletplugin.claims.model import ClaimRef, Device, Plan, Record, State
from kubeletplugin.claims.records import decode, encode
from kubeletplugin.drivers import domain_driver, plan_domain_claim
from kubeletplugin.errors import NewerVersionError, PrepareError
from kubeletplugin.features.domain.plan import DomainFacts, requested
from kubeletplugin.features.domain.steps import DaemonFolderStep, DaemonReadyStep, MembershipStep
from kubeletplugin.kinds.channel import ChannelKind
from kubeletplugin.kinds.daemon import DaemonKind
from kubeletplugin.kinds.domain import DomainName

from .domains import POOL, config

DOMAIN, OTHER = "6e1b3f8e-0c1d-4d1c-8b0a-111111111111", "6e1b3f8e-0c1d-4d1c-8b0a-222222222222"
REF = ClaimRef("team", "claim", "u1")
DAEMON = "ComputeDomainDaemonConfig"
NAME = DomainName(DOMAIN, "team", "d")
FACTS = DomainFacts(NAME, "c.1", "kube-system", host_managed=False)


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


CHANNEL = ChannelKind(NAME, "c.1")
JOINS = (MembershipStep(NAME), DaemonReadyStep(NAME))
ONE = Plan(REF, POOL, (Device("channel-0", "a", CHANNEL),), JOINS)
DAEMON_PLAN = Plan(REF, POOL, (Device("daemon-0", "a", DaemonKind(NAME, "c.1")),), (DaemonFolderStep(NAME),))


@pytest.mark.parametrize(
    ("planned", "expected"),
    [
        (claim({"a": "channel-0"}, config(DOMAIN)), ONE),
        (
            claim({"a": "channel-0"}, config(DOMAIN, allocationMode="All")),
            replace(ONE, devices=(Device("channel-0", "a", replace(CHANNEL, all_channels=True)),)),
        ),
        (claim({"a": "channel-0"}, of_class(config(OTHER)), config(DOMAIN)), ONE),  # the claim's own takes precedence
        (claim({"a": "channel-0"}, config(OTHER), config(DOMAIN)), ONE),
        (claim({"a": "channel-0"}, of_class(config(DOMAIN))), ONE),
        (claim({"a": "channel-0"}, of(config(DOMAIN), "a"), of(config(OTHER), "b")), ONE),
        (claim({"a": "channel-0"}, config(DOMAIN), config(OTHER, DAEMON)), ONE),  # for daemons only
        (
            claim({"a": "channel-0-3", "b/first": "channel-0"}, config(DOMAIN), shareID="5e0f"),
            replace(
                ONE,
                devices=(
                    Device("channel-0-3", "a", CHANNEL, share_id="5e0f"),
                    Device("channel-0", "b", CHANNEL, share_id="5e0f"),
                ),
            ),
        ),
        (claim({"a": "daemon-0"}, config(DOMAIN, DAEMON)), DAEMON_PLAN),
        (
            claim({"a": "daemon-0"}, config(DOMAIN, DAEMON), shareID="5e0f"),
            replace(DAEMON_PLAN, devices=(replace(DAEMON_PLAN.devices[0], share_id="5e0f"),)),
        ),
    ],
)
def test_a_plan_follows_from_allocation_and_configuration(planned: ResourceClaim, expected: Plan) -> None:
    plan = plan_domain_claim(REF, POOL, requested(REF, planned, POOL), FACTS)
    assert plan == expected
    record = Record(State.PREPARING, "boot", plan)
    assert decode(domain_driver(), encode(record)) == record


@pytest.mark.parametrize(
    ("facts", "is_given"), [(replace(FACTS, clique=""), False), (replace(FACTS, host_managed=True), True)]
)
def test_a_channel_outside_of_a_fabric_or_with_a_daemon_of_the_node_changes_nothing(
    facts: DomainFacts, is_given: bool
) -> None:
    plan = plan_domain_claim(REF, POOL, requested(REF, claim({"a": "channel-0"}, config(DOMAIN)), POOL), facts)
    assert plan.steps == ()
    assert [device.kind.is_given for device in plan.devices] == [is_given]


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
def test_unplannable_request_is_refused(planned: ResourceClaim, error: str) -> None:
    with pytest.raises(PrepareError, match=error):
        requested(REF, planned, POOL)


def test_records_are_read_strictly() -> None:
    written = encode(Record(State.PREPARED, "boot", ONE))
    with pytest.raises(NewerVersionError, match="it has version 8, and this plugin supports 7"):
        decode(domain_driver(), written.replace(b'"version": 7', b'"version": 8'))
    with pytest.raises(ValueError, match="'shelf' is unknown"):
        decode(domain_driver(), written.replace(b'"kind": "channel"', b'"kind": "shelf"'))
    with pytest.raises(ValueError, match="more"):
        decode(domain_driver(), written.replace(b'"version"', b'"more": 1, "version"'))


def version_1(kind: str, **changed: object) -> bytes:
    """A record as the previous release wrote it."""
    value: dict[str, object] = {
        "version": 1,
        "claim": {"namespace": "team", "name": "claim", "uid": "u1"},
        "state": "Prepared",
        "bootID": "boot",
        "pool": POOL,
        "type": kind,
        "domain": {"uid": DOMAIN, "namespace": "team", "name": "d"},
        "clique": "c.1",
        "allChannels": False,
        "hostManaged": False,
        "devices": [{"name": f"{kind}-0", "request": "a"}],
    }
    return json.dumps({**value, **changed}).encode()


@pytest.mark.parametrize(
    ("data", "plan"),
    [
        (version_1("channel"), ONE),
        (version_1("daemon"), DAEMON_PLAN),
        (version_1("channel", hostManaged=True), replace(ONE, steps=())),
        (
            version_1(
                "channel",
                clique="",
                allChannels=True,
                devices=[{"name": "channel-0", "request": "a", "shareID": "5e0f"}],
            ),
            replace(ONE, devices=(Device("channel-0", "a", ChannelKind(NAME, "", True), share_id="5e0f"),), steps=()),
        ),
    ],
)
def test_records_of_the_previous_release_are_equal_to_the_plans_of_this_one(data: bytes, plan: Plan) -> None:
    assert decode(domain_driver(), data) == Record(State.PREPARED, "boot", plan)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (version_1("shelf"), "'shelf' is unknown"),
        (version_1("channel", more=1), "more"),
        (version_1("channel", state="Lost"), "Lost"),
        (version_1("channel", devices=[{"name": "channel-0"}]), "request"),
    ],
)
def test_records_of_the_previous_release_are_read_strictly(data: bytes, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        decode(domain_driver(), data)
