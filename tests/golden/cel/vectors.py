# SPDX-License-Identifier: Apache-2.0
"""The format of README.md: one vector, and where our answers differ from it."""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from dra_driver.kube.resource import Device
from dra_driver.kube.resource.codec import V1, decode_slice
from dra_driver.scheduler.cel import (
    COST_LIMIT,
    MAX_BYTES,
    CompileError,
    Environment,
    EvaluationError,
    Selector,
    compile_selector,
)
from dra_driver.scheduler.cel.library.quantity import WrittenQuantity

RELEASE: Final = "1.36"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subject:
    """A device, with the driver that publishes it."""

    driver: str
    device: Device


class Devices:
    """A set of devices. One that cannot be decoded is a disagreement of each vector that asks for it."""

    def __init__(self, raw: Sequence[dict[str, Any]]) -> None:
        self._raw = raw

    @functools.cached_property
    def subjects(self) -> list[Subject]:
        """The devices in the classes of `dra_driver.kube.resource`."""
        return [_subject(raw) for raw in self._raw]


@dataclass(frozen=True, slots=True)
class Vector:
    """An expression, the environment, the devices, and what Kubernetes says."""

    id: str
    category: str
    expression: str
    environment: Environment
    devices: Devices
    expect: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.id}: {self.expression[:200]}"


@dataclass(frozen=True, slots=True)
class Difference:
    """What is compared (`results`, `compile`, `api`, `outputType`, `maxCost`, `actualCost`), ours, and theirs."""

    what: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.what}: {self.ours} here, {self.theirs} in Kubernetes"


def vectors(folder: Path, release: str = RELEASE) -> Iterator[Vector]:
    """All vectors of a folder, with the answers of a release.

    The answers in vectors.jsonl are those of the oldest release. Other answers of a later release are in a file of its
    own.
    """
    sets = json.loads((folder / "devices.json").read_text(encoding="utf-8"))
    devices = {name: Devices(raw) for name, raw in sets.items()}
    changed = changed_vectors(folder, release)
    for line in _lines(folder / "vectors.jsonl"):
        raw = changed.get(line["id"], line)
        environment = Environment(
            release,
            consumable_capacity=raw["features"]["consumableCapacity"],
            list_type_attributes=raw["features"]["listTypeAttributes"],
            stored=raw["envType"] == "stored",
        )
        yield Vector(raw["id"], raw["category"], raw["expression"], environment, devices[raw["devices"]], raw["expect"])


def changed_vectors(folder: Path, release: str) -> dict[str, dict[str, Any]]:
    """The vectors, by ID and as JSON, whose answers in a release differ from those in the oldest release."""
    path = folder / f"vectors-{release}.jsonl"
    return {raw["id"]: raw for raw in _lines(path)} if path.is_file() else {}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def differences(vector: Vector) -> list[Difference]:
    """Where we do not agree, the most important first."""
    try:
        return list(_differences(vector))
    except Exception as error:  # one vector that breaks something must not hide the others
        return [Difference("exception", repr(error), "none")]


def _subject(raw: dict[str, Any]) -> Subject:
    device = {key: value for key, value in raw.items() if key != "driver"}
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": raw["driver"] or "nameless", "pool": pool, "nodeName": "node", "devices": [device]}
    (decoded,) = decode_slice({"metadata": {"name": "slice"}, "spec": spec}, V1, strict=False).devices
    capacity = {  # as written: these never went through an API server, which would write them in canonical form
        name: dataclasses.replace(decoded.capacity[name], value=WrittenQuantity.of_text(value["value"]))
        for name, value in raw.get("capacity", {}).items()
    }
    return Subject(raw["driver"], dataclasses.replace(decoded, capacity=capacity))


def _differences(vector: Vector) -> Iterator[Difference]:
    expect = vector.expect
    selector = _compiled(vector.expression, vector.environment)
    ours = selector.kind if isinstance(selector, CompileError) else "ok"
    theirs = "ok" if expect["compile"]["ok"] else expect["compile"]["kind"]
    if ours != theirs:
        yield Difference("compile", ours, theirs)
    if (admitted := _admission(vector)) != (expected := expect["apiCreate"].get("type", "ok")):
        yield Difference("api", admitted, expected)
    yield from _elsewhere(vector)
    if isinstance(selector, CompileError) or theirs != "ok":
        return
    for index, subject in enumerate(vector.devices.subjects):
        result, cost = _answer(selector, subject)
        wanted = expect["results"][index]
        answer = wanted["match"] if "match" in wanted else wanted["kind"]
        if result != answer:
            yield Difference("results", f"{subject.device.name} is {result}", answer)
        elif "actualCost" in expect and not _is_cost(cost, index, subject, vector, selector):
            yield Difference("actualCost", f"{subject.device.name} costs {cost}", expect["actualCost"][index])
    # where Kubernetes was not asked for them, its type and costs are left out
    if selector.output_type.display != expect.get("outputType", selector.output_type.display):
        yield Difference("outputType", selector.output_type.display, expect["outputType"])
    if str(selector.max_cost) != expect.get("maxCost", str(selector.max_cost)):
        yield Difference("maxCost", selector.max_cost, expect["maxCost"])


def _elsewhere(vector: Vector) -> Iterator[Difference]:
    """The verdict of the environment of the other type, which is only given where it differs."""
    if "otherEnv" not in vector.expect and _is_refuted(vector):
        return
    expected = vector.expect.get("otherEnv", vector.expect)["compile"]
    environment = dataclasses.replace(vector.environment, stored=not vector.environment.stored)
    selector = _compiled(vector.expression, environment)
    ours = selector.kind if isinstance(selector, CompileError) else "ok"
    if ours != (theirs := expected.get("kind", "ok")):
        yield Difference("compile", f"{ours} in the other environment", theirs)


def _is_refuted(vector: Vector) -> bool:
    """Whether the API server's answer, which is compared by itself, shows that the other environment differs.

    The vectors of 1.37 have no `otherEnv` for expressions to which only one of the two environments gives a type.
    """
    if not vector.environment.stored:
        return False
    compiled, created = vector.expect["compile"], vector.expect["apiCreate"]
    if compiled["ok"] or created["ok"]:
        is_refused = created.get("type") in ("FieldValueInvalid", "InternalError")
        return bool(compiled["ok"]) is is_refused
    return bool(compiled["kind"] == "wrong_output_type" and created["detail"] != compiled["error"])


@functools.lru_cache(maxsize=4)
def _compiled(expression: str, environment: Environment) -> Selector | CompileError:
    try:
        return compile_selector(expression, environment)
    except CompileError as error:
        return error


def _admission(vector: Vector) -> str:
    """What kube-apiserver says to a new DeviceClass with this selector."""
    if len(vector.expression.encode()) > MAX_BYTES:
        return "FieldValueTooLong"
    selector = _compiled(vector.expression, dataclasses.replace(vector.environment, stored=False))
    if isinstance(selector, CompileError):
        return "InternalError" if selector.internal else "FieldValueInvalid"
    return "FieldValueForbidden" if selector.max_cost > COST_LIMIT else "ok"


def _answer(selector: Selector, subject: Subject) -> tuple[bool | str, int | None]:
    try:
        return selector.evaluate(subject.driver, subject.device)
    except EvaluationError as error:
        return error.kind, error.cost


def _is_cost(cost: int | None, index: int, subject: Subject, vector: Vector, selector: Selector) -> bool:
    seen = vector.expect.get("costRange", {}).get(str(index))
    if seen is None:
        return bool(cost == vector.expect["actualCost"][index])
    # it depends on the order of maps, which is random in Go: any that is possible here and was seen there will do
    lowest, highest = seen
    costs = [cost for order in _orders(subject) if (cost := _answer(selector, order)[1]) is not None]
    return bool(costs) and min(costs) <= highest and max(costs) >= lowest


def _orders(subject: Subject) -> Iterator[Subject]:
    """The device with its attributes and capacities in several orders."""
    device = subject.device
    for start in range(max(len(device.attributes), len(device.capacity))):
        for step in (1, -1):
            attributes = _turned(device.attributes, start, step)
            capacity = _turned(device.capacity, start, step)
            yield Subject(subject.driver, dataclasses.replace(device, attributes=attributes, capacity=capacity))


def _turned(mapping: Mapping[str, T], start: int, step: int) -> Mapping[str, T]:
    entries = list(mapping.items())
    return dict(entries[start:][::step] + entries[:start][::step])
