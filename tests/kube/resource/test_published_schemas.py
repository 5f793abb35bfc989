# SPDX-License-Identifier: Apache-2.0
"""What we encode, against the JSON schemas that Kubernetes publishes with each release."""

import tempfile
from functools import cache
from pathlib import Path

import pytest
from jsonschema import ValidationError

from dra_driver.gpu.devices import describe
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.simulated import shipped_nodes
from dra_driver.kube.resource import ResourceClaim, ResourceSlice
from dra_driver.kube.resource.codec import (
    V1,
    V1BETA1,
    V1BETA2,
    Dialect,
    decode,
    encode_allocation,
    encode_claim_spec,
    encode_meta,
    encode_slice,
)
from dra_driver.kube.resource.device import SliceFeatures
from tests.kube.resource.test_decode import CLAIM, load
from tests.support.nodes import make_node
from tests.support.schemas import validate, validate_slices

RELEASES = [
    (V1, "1.34"),
    *((dialect, release) for release in ("1.36", "1.37") for dialect in (V1, V1BETA2, V1BETA1)),
]
IDS = [f"{dialect.version}-of-{release}" for dialect, release in RELEASES]


@cache
def published(node: str) -> tuple[ResourceSlice, ...]:
    """The slices of a shipped node."""
    with tempfile.TemporaryDirectory() as folder:
        return node_slices("node-a", "uid", make_node(Path(folder) / "node", node).describe())


@pytest.mark.parametrize("node", [base + mode for base in shipped_nodes() for mode in ("", "-mig", "-mixed")])
def test_slices_of_every_shipped_node_are_as_published(node: str) -> None:
    validate_slices([encode_slice(one, V1) for one in published(node)], "1.36")


@pytest.mark.parametrize(("dialect", "release"), RELEASES, ids=IDS)
def test_slices_are_as_published_with_every_version(dialect: Dialect, release: str) -> None:
    slices = [one for base in shipped_nodes() for one in published(f"{base}-mixed")[:3]]
    validate_slices([encode_slice(one, dialect) for one in slices], release)


@pytest.mark.parametrize("base", shipped_nodes())
def test_without_the_gated_fields_slices_are_as_published_with_1_32(tmp_path: Path, base: str) -> None:
    old = SliceFeatures(False, False, False, counters_beside_devices=True)
    inventory = make_node(tmp_path, f"{base}-mixed").inventory()
    slices = node_slices("node-a", "uid", describe(inventory, features=old).gpus, old)
    validate_slices([encode_slice(one, V1BETA1) for one in slices], "1.32")


@pytest.mark.parametrize(("dialect", "release"), RELEASES, ids=IDS)
def test_claims_are_as_published_with_every_version(dialect: Dialect, release: str) -> None:
    claim = decode(load(CLAIM))
    assert isinstance(claim, ResourceClaim)
    assert claim.allocation is not None
    value = {
        "apiVersion": dialect.api_version,
        "kind": "ResourceClaim",
        "metadata": encode_meta(claim.metadata),
        "spec": encode_claim_spec(claim.spec, dialect),
        "status": {"allocation": encode_allocation(claim.allocation)},
    }
    validate(value, release)


def test_the_schemas_do_notice_a_field_of_another_version() -> None:
    (only,) = published("a30x4")
    with pytest.raises(ValidationError, match="basic"):
        validate({**encode_slice(only, V1BETA1), "apiVersion": V1.api_version}, "1.36")
