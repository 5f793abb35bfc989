# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains and their parts as values."""

import pytest

from dra_driver.config import (
    API_VERSION,
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    ConfigError,
    decode_domain_config,
)
from dra_driver.domains import names
from dra_driver.domains.objects import (
    INDICES_ANNOTATION,
    LONGEST,
    Clique,
    DaemonReport,
    Member,
    decode_clique,
    decode_domain,
    encode_member,
)
from dra_driver.domains.template import channel_claim, daemon_claim
from dra_driver.kube.resource.codec import DecodeError

UID = "d9f6a1d2-3a80-4a7e-9f2b-0c5d3e6f7a81"
MANIFEST = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "train", "namespace": "ml", "uid": UID},
    "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "train-channel"}}},
}


def test_a_domain_has_the_defaults_of_the_definition() -> None:
    domain = decode_domain(MANIFEST, strict=True)
    assert (str(domain), domain.uid, domain.template) == ("ml/train", UID, "train-channel")
    assert (domain.num_nodes, domain.all_channels, domain.is_deleted) == (2, False, False)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({}, "spec.channel: is required"),
        ({"channel": {"resourceClaimTemplate": {}}}, "spec.channel.resourceClaimTemplate.name: is required"),
        (
            {"channel": {"resourceClaimTemplate": {"name": "a"}, "allocationMode": "Some"}},
            "spec.channel.allocationMode: must be Single or All, not 'Some'",
        ),
        ({"numNodes": -1, "channel": {"resourceClaimTemplate": {"name": "a"}}}, "spec.numNodes: must not be negative"),
        ({"nodes": 1, "channel": {"resourceClaimTemplate": {"name": "a"}}}, "spec.nodes: unknown field"),
    ],
)
def test_an_invalid_domain_names_the_field(spec: object, error: str) -> None:
    with pytest.raises(DecodeError) as raised:
        decode_domain({**MANIFEST, "spec": spec}, strict=True)
    assert str(raised.value).startswith(error)


def test_a_clique_is_read_as_it_was_written() -> None:
    member = Member("node-a", "10.0.0.7", "c0ffee.1", 3, DaemonReport(True, "READY", "UP", ""))
    notes = {
        "resource.nvidia.com/computeDomain.indices": '{"node-a": 3}',
        "resource.nvidia.com/computeDomain.slots": "18",
    }
    value = {
        "metadata": {
            "name": names.clique_name(UID, "c0ffee.1"),
            "namespace": "dra",
            "labels": {names.DOMAIN_LABEL: UID, names.CLIQUE_LABEL: "c0ffee.1"},
            "annotations": notes,
        },
        "daemons": [encode_member(member)],
    }
    clique = decode_clique(value)
    assert clique == Clique(f"{UID}.c0ffee.1", "dra", UID, "c0ffee.1", 18, (member,), {"node-a": 3})
    assert (clique.row("node-a"), clique.row("node-b")) == (0, None)
    notes["resource.nvidia.com/computeDomain.indices"] = '{"node-a": "x"}'
    with pytest.raises(DecodeError, match="indices must be integers"):
        decode_clique(value)


def test_the_claims_of_a_domain_have_valid_configurations() -> None:
    channel, daemon = channel_claim(UID, all_channels=True), daemon_claim(UID)
    decoded = [decode_domain_config(one.config[0].opaque.parameters) for one in (channel, daemon)]
    assert decoded == [ComputeDomainChannelConfig(UID, True), ComputeDomainDaemonConfig(UID)]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"kind": "ComputeDomainChannelConfig"}, "domainID: cannot be empty: it is the UID of a ComputeDomain"),
        ({"kind": "GpuConfig", "domainID": UID}, "kind: 'GpuConfig' is not supported"),
        ({"kind": "ComputeDomainDaemonConfig", "domainID": UID, "allocationMode": "All"}, "allocationMode: unknown"),
        ({"kind": "ComputeDomainChannelConfig", "domainID": UID, "allocationMode": "x"}, "allocationMode: must be"),
    ],
)
def test_an_invalid_configuration_names_the_field(fields: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decode_domain_config({"apiVersion": API_VERSION, **fields})
    assert str(raised.value).startswith(error)


def test_host_names_differ_between_domains_and_fit() -> None:
    other = UID.replace("d9", "d8")
    found = {names.host_name(uid, index) for uid in (UID, other) for index in range(18)}
    assert len(found) == 36
    assert all(len(one) < 63 for one in found)


def test_the_texts_of_a_row_are_bounded() -> None:
    row = {"nodeName": "a", "ipAddress": "10.0.0.1\n10.6.6.6 other", "cliqueID": "c.1", "index": 0}
    texts = {"state": "s" * 99, "domainState": "d" * 99, "message": "\x1b" + "m" * 900_000}
    (member,) = decode_clique({"metadata": {"name": "x.c.1"}, "daemons": [{**row, **texts}]}).members
    assert member.address == ""
    for name, most in LONGEST.items():
        text = getattr(member.report, name)
        assert len(text) == most
        assert text.isprintable()
    assert member == decode_clique({"metadata": {"name": "x.c.1"}, "daemons": [encode_member(member)]}).members[0]


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1"), ("x", ""), ("fe80::1%eth0\n10.6.6.6 other", "")],
)
def test_an_address_is_an_ip_address(address: str, expected: str) -> None:
    row = {"nodeName": "a", "ipAddress": address, "cliqueID": "c.1", "index": 0}
    assert decode_clique({"metadata": {"name": "x.c.1"}, "daemons": [row]}).members[0].address == expected


@pytest.mark.parametrize("indices", ["[" * 50_000, '{"a": 1e99}', "nothing"])
def test_annotations_that_cannot_be_read_are_a_decode_error(indices: str) -> None:
    with pytest.raises(DecodeError):
        decode_clique({"metadata": {"name": "x.c.1", "annotations": {INDICES_ANNOTATION: indices}}})
