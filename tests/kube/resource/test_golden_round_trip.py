# SPDX-License-Identifier: Apache-2.0
"""Every object of the golden scenarios survives decoding and encoding, in every version.

What should come out is derived from the document itself, with the API's defaults filled in and empty fields
dropped: nothing here shares code with the codec but quantities.
"""

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.resource import Node, Quantity, ResourceClaim, ResourceSlice
from dra_driver.kube.resource.codec import (
    BY_API_VERSION,
    DIALECTS,
    Decoded,
    decode,
    decode_claim,
    encode_allocation,
    encode_claim_spec,
    encode_slice,
)
from dra_driver.kube.resource.validation import slice_problems
from tests.golden.stored import categories, category_scenarios

JSON = dict[str, Any]
GOLDEN = Path(__file__).parents[2] / "golden/allocation"
CATEGORIES = categories(GOLDEN)
KINDS = {"ResourceSlice", "ResourceClaim", "DeviceClass", "Node"}


@functools.cache
def documents(category: str) -> list[tuple[str, JSON, Decoded]]:
    """(scenario, object, decoded object) of a category."""
    scenarios = category_scenarios(GOLDEN, category)
    return [(stored.name, document, decode(document)) for stored in scenarios for document in stored.documents()]


def quantity(value: object) -> str:
    """The canonical text of a quantity as a user wrote it."""
    return str(Quantity.parse(str(value)))


def pruned(value: Any) -> Any:
    """Without null, empty and false fields, which the API server leaves out."""
    if isinstance(value, dict):
        fields = {key: pruned(item) for key, item in value.items()}
        return {key: item for key, item in fields.items() if item is not False and item not in (None, "", [], {})}
    return [pruned(item) for item in value] if isinstance(value, list) else value


def slice_spec(spec: JSON) -> JSON:
    """A slice's spec as the API server returns it."""
    expected: JSON = pruned({key: value for key, value in spec.items() if key != "devices"})
    for counters in expected.get("sharedCounters", ()):
        canonical_counters(counters)
    devices = [device(value) for value in spec.get("devices") or ()]
    return expected | ({"devices": devices} if devices else {})


def device(value: JSON) -> JSON:
    """A device as the API server returns it. Attributes may be false or empty, and stay as they are."""
    expected: JSON = pruned({key: item for key, item in value.items() if key not in ("attributes", "capacity")})
    expected.pop("nodeAllocatableResourceMappings", None)
    for consumption in expected.get("consumesCounters", ()):
        canonical_counters(consumption)
    if attributes := value.get("attributes"):
        expected["attributes"] = attributes
    if value.get("capacity"):
        expected["capacity"] = {name: capacity(entry) for name, entry in value["capacity"].items()}
    return expected


def capacity(value: JSON) -> JSON:
    """A capacity with canonical quantities."""
    expected: JSON = {"value": quantity(value["value"])}
    if policy := value.get("requestPolicy"):
        expected["requestPolicy"] = pruned(
            {
                "default": policy.get("default") and quantity(policy["default"]),
                "validValues": [quantity(one) for one in policy.get("validValues") or ()],
                "validRange": {name: quantity(bound) for name, bound in (policy.get("validRange") or {}).items()},
            }
        )
    return expected


def canonical_counters(owner: JSON) -> None:
    """Make the counters of a set or consumption canonical, in place."""
    owner["counters"] = {name: {"value": quantity(entry["value"])} for name, entry in owner["counters"].items()}


def claim_spec(spec: JSON) -> JSON:
    """A claim's spec with defaults."""
    given: JSON = spec.get("devices") or {}
    devices: JSON = pruned(given)
    for request in devices.get("requests", ()):
        for requirements in request.get("firstAvailable") or [request["exactly"]]:
            add_request_defaults(requirements)
    keep_parameters(devices.get("config", ()), given.get("config") or ())
    return {"devices": devices}


def add_request_defaults(request: JSON) -> None:
    """allocationMode, count, and the operator of tolerations, in place."""
    request.setdefault("allocationMode", "ExactCount")
    if request["allocationMode"] == "ExactCount":
        request.setdefault("count", 1)
    add_toleration_defaults(request)
    if "capacity" in request:
        amounts = request["capacity"]["requests"]
        request["capacity"]["requests"] = {name: quantity(amount) for name, amount in amounts.items()}


def add_toleration_defaults(owner: JSON) -> None:
    """The operator, in place."""
    for toleration in owner.get("tolerations", ()):
        toleration.setdefault("operator", "Equal")


def allocation(value: JSON) -> JSON:
    """An allocation result with defaults."""
    expected: JSON = pruned(value)
    expected.pop("allocationTimestamp", None)
    devices = expected.get("devices", {})
    for result in devices.get("results", ()):
        add_toleration_defaults(result)
        if "consumedCapacity" in result:
            amounts = result["consumedCapacity"]
            result["consumedCapacity"] = {name: quantity(amount) for name, amount in amounts.items()}
    keep_parameters(devices.get("config", ()), value.get("devices", {}).get("config") or ())
    return expected


def keep_parameters(entries: Any, given: Any) -> None:
    """Opaque parameters are passed on untouched: put back what pruning took."""
    for entry, written in zip(entries, given, strict=True):
        entry["opaque"]["parameters"] = written["opaque"]["parameters"]


@pytest.mark.parametrize("category", CATEGORIES)
def test_slices_come_out_as_they_went_in(category: str) -> None:
    for file, document, decoded in documents(category):
        if document["kind"] == "ResourceSlice":
            assert isinstance(decoded, ResourceSlice)
            encoded = encode_slice(decoded, BY_API_VERSION[document["apiVersion"]])
            assert encoded["spec"] == slice_spec(document["spec"]), file
            assert encoded["metadata"] == pruned(document["metadata"]), file


@pytest.mark.parametrize("category", CATEGORIES)
def test_claims_come_out_as_they_went_in(category: str) -> None:
    for file, document, decoded in documents(category):
        if document["kind"] == "ResourceClaim":
            assert isinstance(decoded, ResourceClaim)
            encoded = encode_claim_spec(decoded.spec, BY_API_VERSION[document["apiVersion"]])
            assert encoded == claim_spec(document["spec"]), file
            given: Any = (document.get("status") or {}).get("allocation")
            assert (decoded.allocation is None) == (given is None), file
            if decoded.allocation is not None:
                assert encode_allocation(decoded.allocation) == allocation(given), file


@pytest.mark.parametrize("category", CATEGORIES)
def test_every_version_says_the_same(category: str) -> None:
    for (file, document, decoded), dialect in itertools.product(documents(category), DIALECTS):
        if isinstance(decoded, ResourceSlice):
            assert decode(encode_slice(decoded, dialect)) == decoded, file
        elif isinstance(decoded, ResourceClaim):
            value = {"metadata": document["metadata"], "spec": encode_claim_spec(decoded.spec, dialect)}
            if decoded.allocation is not None:
                value["status"] = {"allocation": encode_allocation(decoded.allocation)}
            again = decode_claim(value, dialect)
            assert (again.metadata, again.spec, again.allocation) == (
                decoded.metadata,
                decoded.spec,
                decoded.allocation,
            ), file


@pytest.mark.parametrize("category", CATEGORIES)
def test_classes_and_nodes_are_read(category: str) -> None:
    for file, document, decoded in documents(category):
        assert document["kind"] in KINDS, file
        assert decoded.metadata.name == document["metadata"]["name"], file
        assert not isinstance(decoded, Node) or dict(decoded.metadata.labels) == document["metadata"].get("labels", {})


@pytest.mark.parametrize("category", CATEGORIES)
def test_slices_that_the_api_server_accepted_have_no_problems(category: str) -> None:
    """The scenarios' answers say which objects 1.36 refuses: no slice, with all features on."""
    for file, _, decoded in documents(category):
        if isinstance(decoded, ResourceSlice):
            assert [str(problem) for problem in slice_problems(decoded)] == [], file
