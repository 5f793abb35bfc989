# SPDX-License-Identifier: Apache-2.0
"""A user of the API attacks the driver with names and numbers in claims and ComputeDomains, in a loop."""

import re
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.domains.membership import slots_of
from dra_driver.config import API_VERSION
from dra_driver.domains.names import DAEMON_CLASS, DRIVER
from dra_driver.domains.objects import MOST_SLOTS, decode_domain
from dra_driver.kube.resource.codec import V1, decode_claim
from kubeletplugin.claims.cache import RecordCache
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.claims.records import record_format
from kubeletplugin.containers.metadata import POD_CLAIM_NAME, MetadataFiles
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.errors import PrepareError, RecordError
from kubeletplugin.features.domain.plan import requested
from kubeletplugin.kinds.vfio.kubevirt import variable
from tests.charts.domains import domain_objects
from tests.charts.policies import policy, verdict

ROUNDS = 20
UID = "6a1b1f34-0000-4000-8000-000000000001"
TEXTS = (
    "../",
    "../../etc/passwd",
    "/etc",
    "a/b",
    ".",
    "..",
    "a\0b",
    "a\nb",
    "ü",
    " ",
    "%2e%2e/",
    "a" * 300,
    "\x1b[2J",
    "~",
)


def hostile() -> list[str]:
    """Names that are no names."""
    return [f"{text}{number}{text}" for number in range(ROUNDS) for text in TEXTS]


def claim(results: list[dict[str, Any]], config: dict[str, Any], **annotations: str) -> Any:
    """An allocated claim as an API server sends it."""
    entry = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"apiVersion": API_VERSION, **config}}}
    meta = {"name": "claim", "namespace": "team", "uid": UID, "annotations": annotations}
    allocation = {"devices": {"results": results, "config": [entry]}}
    return decode_claim({"metadata": meta, "spec": {}, "status": {"allocation": allocation}}, V1)


CHANNEL = {"request": "channel", "driver": DRIVER, "pool": "a", "device": "channel-0"}
GPU = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}


def test_no_domain_id_becomes_a_path() -> None:
    for text in hostile():
        config = {"kind": "ComputeDomainChannelConfig", "domainID": text}
        with pytest.raises(PrepareError) as raised:
            requested(ClaimRef("team", "claim", UID), claim([CHANNEL], config), "a")
        assert len(str(raised.value)) < 2500
        assert str(raised.value).isprintable()


def test_no_uid_becomes_the_file_of_a_record(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    records = RecordCache(RecordFiles(folder, record_format(gpu_driver())))
    for text in hostile():
        with pytest.raises(RecordError):
            records.get(text)
    assert [path for path in tmp_path.rglob("*") if path != folder] == []


def test_no_annotation_leads_a_metadata_file_to_another_path(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path / "metadata")
    for text in hostile():
        files.write(claim([GPU], {"kind": "GpuConfig"}, **{POD_CLAIM_NAME: text}), lambda _: {})
        (edits,) = files.edits(UID).values()
        (mount,) = edits.mounts
        assert mount.container_path.startswith("/var/run/kubernetes.io/dra-device-attributes/resourceclaims/claim/gpu/")
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "metadata"]


def test_no_position_in_a_claim_hides_the_class_of_imex_daemons() -> None:
    spec = policy(domain_objects(), "daemon-claims")
    for number in range(12):
        others = [{"name": f"r{one}", "exactly": {"deviceClassName": f"class-{one}"}} for one in range(number)]
        options = [{"name": f"o{one}", "deviceClassName": f"class-{one}"} for one in range(number % 8)]
        wanted = {"deviceClassName": DAEMON_CLASS}
        for request in ({"name": "x", "exactly": wanted}, {"name": "x", "firstAvailable": [*options, wanted]}):
            devices = {"devices": {"requests": [*others, request]}}
            for value in ({"spec": devices}, {"spec": {"spec": devices}}):
                whole = {"metadata": {"name": f"claim-{number}"}, **value}
                user = {"username": f"user-{number}", "groups": ["system:authenticated"]}
                assert verdict(spec, "CREATE", whole, None, user, f"team-{number}") is not None


def test_no_number_of_nodes_makes_more_indices_than_the_limit() -> None:
    for exponent in range(63):
        for number in ((1 << exponent) - 1, 1 << exponent):
            spec = {"numNodes": number, "channel": {"resourceClaimTemplate": {"name": "channel"}}}
            meta = {"namespace": "team", "name": "domain", "uid": UID}
            domain = decode_domain({"apiVersion": API_VERSION, "metadata": meta, "spec": spec})
            assert slots_of(domain, 18) <= MOST_SLOTS


def test_no_extended_resource_sets_another_variable() -> None:
    for name in ("LD_PRELOAD", "nvidia.com/LD_PRELOAD", "path", "a.b/PATH", "x/-y.z"):
        for number in range(ROUNDS):
            assert re.fullmatch(r"PCI_RESOURCE_[A-Z0-9_-]+", variable(f"{name}{number}"))
