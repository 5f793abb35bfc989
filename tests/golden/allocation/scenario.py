# SPDX-License-Identifier: Apache-2.0
"""Reading a scenario and comparing an answer with what Kubernetes gave, as README.md says."""

import json
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.kube.releases import has_rule
from dra_driver.kube.resource import DeviceRequirements, DeviceTaintRule, ResourceClaim, ResourceSlice, codec
from dra_driver.scheduler.allocator import Cluster, Features, NodeOutcome, allocate, allocate_all, with_taint_rules
from dra_driver.scheduler.cel.library.quantity import WrittenQuantity

from ..agreement import computed_by
from ..stored import StoredScenario

_GATES = "# feature-gates:"
_ALLOCATOR = "# allocator-features:"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster with pending claims, and the expected outcome of each node as JSON."""

    category: str
    name: str
    cluster: Cluster
    features: Features
    expected: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.category}/{self.name}"


def judge(stored: StoredScenario) -> list[str]:
    """What is different from Kubernetes' answer. An exception is a difference, too."""
    try:
        return list(disagreements(load(stored)))
    except Exception:
        return [f"an exception instead of an answer:\n{traceback.format_exc()}"]


def load(stored: StoredScenario) -> Scenario:
    """Decode a scenario."""
    decoded = [_decode(document) for document in stored.documents()]
    expected = stored.expected()
    features = _features(stored.cluster, computed_by(expected))
    cluster = Cluster.of(_with_rules(decoded, features))
    return Scenario(stored.category, stored.name, cluster, features, expected["nodes"])


def _with_rules(objects: list[object], features: Features) -> Iterator[object]:
    """The objects, with the taints of DeviceTaintRules if the feature gates for them are on."""
    rules = [one for one in objects if isinstance(one, DeviceTaintRule)]
    effective = rules if features.device_taints and features.device_taint_rules else []
    yield from (one for one in objects if not isinstance(one, DeviceTaintRule | ResourceSlice))
    slices = (one for one in objects if isinstance(one, ResourceSlice))
    every = has_rule(features.release, "rule_without_selector_taints_all")
    yield from with_taint_rules(slices, effective, without_selector=every)


def _decode(document: dict[str, Any]) -> object:
    """The object. Amounts of claims remember their spelling: Kubernetes' answer is for `1.5Gi`, if that is written."""
    decoded = codec.decode(document)
    if not isinstance(decoded, ResourceClaim):
        return decoded
    raw = {
        f"{request['name']}/{one['name']}" if one is not request.get("exactly") else request["name"]: one
        for request in document["spec"].get("devices", {}).get("requests", ())
        for one in (request.get("exactly"), *request.get("firstAvailable", ()))
        if one is not None
    }

    def as_written(name: str, requirements: DeviceRequirements) -> DeviceRequirements:
        amounts = raw[name].get("capacity", {}).get("requests", {})
        written = {key: WrittenQuantity.of_text(str(amount)) for key, amount in amounts.items()}
        return replace(requirements, capacity_requests=written)

    return replace(decoded, spec=decoded.spec.with_requirements(as_written))


def _features(text: str, release: str) -> Features:
    gates: dict[str, bool] = {}
    lists = False
    for line in text.splitlines():
        if line.startswith(_GATES):
            gates.update(_settings(line.removeprefix(_GATES)))
        elif line.startswith(_ALLOCATOR):
            lists = _settings(line.removeprefix(_ALLOCATOR)).get("ListTypeAttributes", False)
        elif not line.startswith("#"):
            break
    features = Features.from_gates(gates, release=release)
    return replace(features, list_constraints=True) if lists else features


def _settings(text: str) -> dict[str, bool]:
    pairs = (item.strip().partition("=") for item in text.split(",") if item.strip())
    return {name: value == "true" for name, _, value in pairs}


def disagreements(scenario: Scenario) -> Iterator[str]:
    """What is different from Kubernetes' answer, per node; each node asked alone and together with the others."""
    pending = scenario.cluster.pending
    together = allocate_all(scenario.cluster, pending, scenario.features)
    if sorted(together) != sorted(scenario.expected):
        yield f"nodes {sorted(together)} instead of {sorted(scenario.expected)}"
        return
    for node, expected in scenario.expected.items():
        wanted = _comparable(expected)
        for how, outcome in (
            ("alone", allocate(scenario.cluster, pending, node, scenario.features)),
            ("with all nodes", together[node]),
        ):
            found = _comparable(_encoded(outcome))
            if found != wanted:
                yield f"{node} ({how}):\n  expected {_line(wanted)}\n  found    {_line(found)} {outcome.message}"


def _encoded(outcome: NodeOutcome) -> dict[str, Any]:
    # Go writes devices even when a claim needs none.
    allocations: list[dict[str, Any]] = [
        {"devices": {}} | codec.encode_allocation(allocation) for allocation in outcome.allocations
    ]
    for allocation in allocations:
        for result in allocation["devices"].get("results", ()):
            if "shareID" in result:
                result["shareID"] = "*"
    return {
        "outcome": outcome.kind,
        "allocations": allocations,
        "errorKind": outcome.error_kind,
        "fatal": outcome.fatal,
    }


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """What README.md asks to compare: order counts in lists, and quantities by the text they have."""
    kept: dict[str, Any] = {"outcome": answer["outcome"]}
    if answer["outcome"] == "allocated":
        kept["allocations"] = answer.get("allocations", [])
    if answer["outcome"] == "error":
        kept |= {"errorKind": answer["errorKind"], "fatal": answer["fatal"]}
    return kept


def _line(answer: dict[str, Any]) -> str:
    return json.dumps(answer, sort_keys=True)
