# SPDX-License-Identifier: Apache-2.0
"""Reading a scenario, and this project's answer in the form of README.md."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.kube.resource import Quantity
from dra_driver.scheduler.allocator import Features
from dra_driver.scheduler.pods import Attempt, Given, PodDecoder, Quotas, Reader, Refusal, Victims, admit_pod
from dra_driver.scheduler.pods.quota import Countable

from ..agreement import computed_by
from ..stored import StoredScenario

JSON = dict[str, Any]

_POD = "# pod: "
_CREATE = "# create: "
_NOT_COMPARED = ("description", "computedBy", "podRequests")
_CEL = re.compile(r"(CEL (?:compile|runtime) error: ).*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A small cluster, what is asked about it, and what Kubernetes answers.

    `create` is kind, namespace and name. `release` is the release that gave the answer.
    """

    category: str
    name: str
    documents: list[JSON]
    create: tuple[str, str, str] | None
    expected: JSON
    release: str

    def __str__(self) -> str:
        return f"{self.category}/{self.name}"


def load(stored: StoredScenario) -> Scenario:
    """Decode a scenario."""
    expected = stored.expected()
    create, release = _asked(stored.cluster), computed_by(expected)
    return Scenario(stored.category, stored.name, stored.documents(), create, expected, release)


def _asked(text: str) -> tuple[str, str, str] | None:
    for line in text.splitlines():
        if line.startswith(_POD):
            return ("Pod", *_split(line.removeprefix(_POD)))
        if line.startswith(_CREATE):
            kind, _, name = line.removeprefix(_CREATE).strip().partition(" ")
            return (kind, *_split(name))
    return None


def _split(name: str) -> tuple[str, str]:
    namespace, _, own = name.strip().partition("/")
    return namespace, own


def disagreements(scenario: Scenario) -> Iterator[str]:
    """What is different from Kubernetes' answer. An exception counts as one."""
    try:
        found = _answer(scenario)
    except Exception as error:  # one scenario must not end the run
        yield f"{type(error).__name__}: {error}"
        return
    wanted = scenario.expected
    for key in sorted({*wanted, *found} - {*_NOT_COMPARED}):
        if key == "nodes":
            nodes = {*wanted.get(key, {}), *found.get(key, {})}
            pairs = [(f"nodes.{name}", wanted.get(key, {}).get(name), found.get(key, {}).get(name)) for name in nodes]
        else:
            pairs = [(key, wanted.get(key), found.get(key))]
        for where, one, other in pairs:
            if _loose(one) != _loose(other):
                yield f"{where}:\n  expected {_line(one)}\n  found    {_line(other)}"
    if not _same_amounts(wanted.get("podRequests") or {}, found.get("podRequests") or {}):
        yield f"podRequests:\n  expected {wanted.get('podRequests')}\n  found    {found.get('podRequests')}"


def _line(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _loose(value: object) -> object:
    """Without what the CEL library says, which README.md asks to compare loosely."""
    if isinstance(value, dict):
        return {key: _loose(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_loose(one) for one in value]
    return _CEL.sub(r"\1", value) if isinstance(value, str) else value


def _same_amounts(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    parsed = [{name: Quantity.parse(text) for name, text in each.items()} for each in (one, other)]
    return parsed[0] == parsed[1]


def _answer(scenario: Scenario) -> JSON:
    if scenario.category == "quota":
        return _quota_answer(scenario)
    assert scenario.create is not None
    reader, asked = _read(scenario)
    assert asked is not None
    admitted = admit_pod(asked, reader.policies())
    pod = PodDecoder().decode(admitted.pod)
    attempt = Attempt(pod, reader.snapshot(), Features.from_gates({}, release=scenario.release))
    return _pod_answer(attempt, admitted.refusals)


def _read(scenario: Scenario) -> tuple[Reader, JSON | None]:
    reader = Reader()
    asked = None
    for document in scenario.documents:
        meta = document["metadata"]
        if (document["kind"], meta.get("namespace", "default"), meta["name"]) == scenario.create:
            asked = document
        else:
            assert reader.add(document), f"kind {document['kind']} is not read"
    return reader, asked


def _pod_answer(attempt: Attempt, errors: tuple[str, ...]) -> JSON:
    pod = attempt.pod
    answer: JSON = {"pod": str(pod), "fits": list(attempt.fits)}
    if errors:
        answer["apiErrors"] = list(errors)
    if pod.requests:
        answer["podRequests"] = {name: str(one) for name, one in pod.requests.items()}
    if attempt.gates:
        answer["preEnqueue"] = [_refusal(one) for one in attempt.gates]
    if attempt.only_nodes is not None:
        answer["preFilterNodes"] = sorted(attempt.only_nodes)
    answer["verdict"] = verdict = _verdict(attempt, errors)
    if attempt.refusal is not None and attempt.snapshot.nodes:
        answer["preFilter"] = _refusal(attempt.refusal)
    elif attempt.snapshot.nodes:
        answer["nodes"] = {name: _node(attempt, name, one) for name, one in attempt.refusals.items()}
    if not attempt.fits and not attempt.errors:
        answer["fitError"] = attempt.fit_error
    if verdict in ("unfit", "error") and attempt.event:
        answer["event"] = attempt.event
    if verdict == "unfit" and attempt.after is not None:
        preemption = attempt.after.preemption
        answer["preemption"] = {"nominated": list(preemption.nominated) if preemption is not None else []}
        if attempt.after.message:
            answer["preemption"]["message"] = attempt.after.message
        if preemption is not None and preemption.candidates:
            answer["preemption"]["candidates"] = {name: _victims(one) for name, one in preemption.candidates.items()}
    return answer


def _victims(one: Victims) -> JSON:
    violations = {"pdbViolations": one.violations} if one.violations else {}
    return {"victims": sorted(map(str, one.pods)), **violations}


def _verdict(attempt: Attempt, errors: tuple[str, ...]) -> str:
    if errors:
        return "refused"
    if attempt.pod.node_name:
        return "bound"
    if attempt.gates:
        return "gated"
    if attempt.errors:
        return "error"
    return "fits" if attempt.fits else "unfit"


def _refusal(one: Refusal) -> JSON:
    return {"plugin": one.plugin, "code": str(one.code), "reasons": list(one.reasons)}


def _node(attempt: Attempt, name: str, refusal: Refusal | None) -> JSON:
    if refusal is not None:
        if not refusal.plugin:
            narrowed = {"code": str(refusal.code), "reasons": list(refusal.reasons)}
            return {"fits": False, **narrowed, "excludedByPreFilter": True}
        return {"fits": False, **_refusal(refusal)}
    answer: JSON = {"fits": True, "code": "Success"}
    given = attempt.gives(name)
    if given:
        answer["allocations"] = [_given(one) for one in given]
    error = attempt.binding_error(name)
    if error:
        answer["bindingError"] = error
    return answer


def _given(one: Given) -> JSON:
    answer: JSON = {
        "claim": one.name,
        "devices": [
            {"request": device.request, "driver": device.driver, "pool": device.pool, "device": device.device}
            for device in one.allocation.results
        ],
    }
    requests = [
        {"name": request.name, "class": exactly.device_class_name, "count": exactly.count}
        for request in one.requests
        for exactly in [request.exactly]
        if exactly is not None
    ]
    return {**answer, "requests": requests} if requests else answer


def _quota_answer(scenario: Scenario) -> JSON:
    reader, asked = _read(scenario)
    policies = reader.policies()
    quotas = Quotas(reader.snapshot(), reader.templates)
    answer: JSON = {
        "quotas": {
            str(quota): {"hard": _texts(quota.hard), "used": _texts(quotas.used(quota))} for quota in policies.quotas
        }
    }
    if asked is None or scenario.create is None:
        return answer
    item: Countable
    if scenario.create[0] == "Pod":
        item = PodDecoder().decode(admit_pod(asked, policies).pod)
    else:
        alone = Reader()
        alone.add(asked)
        item = alone.templates[0] if alone.templates else alone.snapshot().cluster.claims[0]
    decision = quotas.decide(item, policies.quotas)
    kind, namespace, name = scenario.create
    answer |= {"create": f"{kind} {namespace}/{name}", "usage": _texts(decision.usage)}
    answer["admitted"] = not decision.messages
    if len(decision.messages) > 1:
        answer["messageAnyOf"] = sorted(decision.messages)
    elif decision.messages:
        answer["message"] = decision.messages[0]
    for quota, used in (decision.used_after or {}).items():
        answer["quotas"][quota]["usedAfter"] = _texts(used)
    return answer


def _texts(quantities: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(one) for name, one in quantities.items()}
