# SPDX-License-Identifier: Apache-2.0
"""A kind of device and a feature that only this test has, on their way through the engine.

A lamp is a device, and its step switches it on: a file that tells the colour. The feature connects lamps of a claim to
a signal of the node, which may come late, and all lamps of a node that are connected have one colour.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from dra_driver.gpu.nvml import Nvml
from dra_driver.gpu.options import Hardware
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import Fields
from kubeletplugin.claims.boundary import ClaimBoundary
from kubeletplugin.claims.call import OWN_WORK, Call
from kubeletplugin.claims.engine import ClaimTimes, Engine
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.model import (
    JSON,
    ClaimRef,
    Device,
    Driver,
    Kind,
    Plan,
    SpecPlace,
    State,
    Step,
    Undoable,
)
from kubeletplugin.claims.planner import Planner
from kubeletplugin.claims.reader import allocated
from kubeletplugin.claims.records import record_format
from kubeletplugin.claims.specs import ClaimSpecs
from kubeletplugin.containers.cdi import ContainerEdits
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.errors import PrepareError, StoppedError
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.node import Node
from tests.faults.points import KilledError, Points, Trigger, raise_killed
from tests.kubeletplugin.inside import ApiServer, CallThread
from tests.support.waiting import wait_for

NAME: Final = "gpu.nvidia.com"
SIGNAL: Final = "signal"
QUICK: Final = ClaimTimes(look=0.01)
COLOURS: Final = ("red", "green")


def files_of(node: Node, folder: str) -> Path:
    return node.folders.folder / folder


# The kind


@dataclass(frozen=True, slots=True)
class Lamp(Kind):
    """The lamp with this number."""

    TAG = "lamp"

    number: int

    @property
    def keys(self) -> frozenset[str]:
        return frozenset((f"lamp {self.number}",))

    @property
    def minor(self) -> int:
        return self.number

    def edits(self, place: SpecPlace, device: Device) -> ContainerEdits:
        return ContainerEdits(env=(f"LAMP={place.record.found[device.name]['colour']}",))

    def attributes(self, found: JSON) -> JSON:
        return {"type": "lamp", **found}

    def to_json(self) -> JSON:
        return {"number": self.number}

    @classmethod
    def from_json(cls, fields: Fields) -> "Lamp":
        return cls(fields.required_integer("number"))


@dataclass(frozen=True, slots=True)
class OnStep(Step):
    """The lamp is on. The file of the lamp is the hardware, and the mark is beside it."""

    TAG = "on"
    NVML = False

    number: int
    colour: str

    @property
    def key(self) -> str:
        return f"lamp {self.number}"

    @property
    def mark(self) -> Hashable:
        return self.TAG, self.number

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        self._write(node, "marks", self.colour)
        self._write(node, "lamps", self.colour)
        return {f"lamp-{self.number}": {"colour": self.colour}}

    def is_done(self, node: Node) -> bool:
        return (files_of(node, "lamps") / str(self.number)).exists()

    def is_marked(self, node: Node) -> bool:
        return (files_of(node, "marks") / str(self.number)).exists()

    def undo(self, node: Node, call: Call) -> str:
        for folder in ("lamps", "marks"):
            (files_of(node, folder) / str(self.number)).unlink(missing_ok=True)
        return ""

    @classmethod
    def strays(cls, node: Node) -> Iterator[Undoable]:
        folder = files_of(node, "marks")
        return (cls(int(path.name), "") for path in sorted(folder.iterdir()) if path.name.isdecimal())

    def to_json(self) -> JSON:
        return {"number": self.number, "colour": self.colour}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "OnStep":
        return cls(fields.required_integer("number"), fields.required_text("colour"))

    def _write(self, node: Node, folder: str, text: str) -> None:
        new = files_of(node, folder) / f".{self.number}.new"
        new.write_text(text)
        new.replace(files_of(node, folder) / str(self.number))


# The feature


@dataclass(frozen=True, slots=True)
class SignalStep(Step):
    """The lamps of the claim follow the signal of the node, in one colour."""

    TAG = "signal"
    NVML = False

    lamp: str
    colour: str

    @property
    def key(self) -> str:
        return self.lamp

    @property
    def mark(self) -> Hashable:
        return self

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        return {}

    def is_done(self, node: Node) -> bool:
        return True

    def is_marked(self, node: Node) -> bool:
        return False

    def undo(self, node: Node, call: Call) -> str:
        return ""

    def waits_for(self, node: Node) -> str:
        return "" if (node.folders.folder / SIGNAL).exists() else "there is no signal yet"

    def clash(self, owner: Plan, other: Plan) -> str:
        others = [step for step in other.steps if isinstance(step, SignalStep) and step.colour != self.colour]
        return f"claim {owner.claim} is {self.colour}, and claim {other.claim} is not" if others else ""

    def edits(self, place: SpecPlace, device: Device) -> ContainerEdits:
        return ContainerEdits(env=(f"SIGNAL={self.colour}",))

    def to_json(self) -> JSON:
        return {"lamp": self.lamp, "colour": self.colour}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "SignalStep":
        return cls(fields.required_text("lamp"), fields.required_text("colour"))


def plan(node: Node, ref: ClaimRef, claim: ResourceClaim) -> Plan:
    """Devices are named lamp-NUMBER. The name of the claim is the colour of its lamps; plain ones need no signal."""
    colour = ref.name.partition("-")[0]
    kinds = {one.device: Lamp(int(one.device.partition("-")[2])) for one in allocated(ref, claim, NAME)}
    devices = tuple(Device(name, "lamps", kind) for name, kind in kinds.items())
    steps: list[Step] = [OnStep(kind.number, colour) for kind in kinds.values()]
    if colour in COLOURS:
        steps.append(SignalStep(min(devices[0].kind.keys), colour))
    return Plan(ref, node.name, devices, LAMPS.ordered(steps, devices))


LAMPS: Final = Driver(NAME, (Lamp,), ((OnStep,), (SignalStep,)), plan)


# The node


def no_nvml() -> Nvml:
    raise AssertionError("lamps need no NVML")


class Process:
    """A process of the plugin, with lamps only."""

    def __init__(self, root: Path, api: ApiServer, times: ClaimTimes = QUICK) -> None:
        self.root = root
        self.events: list[str] = []
        for folder in ("lamps", "marks"):
            (root / folder).mkdir(exist_ok=True)
        hardware = Hardware(no_nvml, root, root, root, root, root / "sys", root)
        folders = NodeFolders(root / "registry", root, root / "cdi", root / "shm", hardware)
        node = Node("node-a", "boot-1", folders, yields=False)
        files = RecordFiles(root / "claims", record_format(LAMPS))
        specs = ClaimSpecs(node, CommonSpec(folders.cdi_root, folders.driver_root))
        boundary = ClaimBoundary(lambda _, reason, __: self.events.append(reason))
        self.engine = Engine(Planner(LAMPS, node, api.fetch), files, specs, boundary, times)
        self.engine.begin()
        self.engine.recover()

    def left(self) -> dict[str, list[str]]:
        """Everything that claims have on the node."""
        return {
            folder: sorted(path.name for path in (self.root / folder).iterdir() if path.suffix != ".new")
            for folder in ("lamps", "marks", "claims", "cdi")
            if (self.root / folder).is_dir()
        }

    def environment(self, ref: ClaimRef) -> str:
        """The CDI spec of a claim."""
        return (self.root / "cdi" / f"k8s.gpu.nvidia.com-claim_{ref.uid}.json").read_text()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / SIGNAL).touch()
    return tmp_path


def test_a_claim_gets_its_lamps_and_gives_them_back(root: Path, api: ApiServer) -> None:
    process, ref = Process(root, api), api.add(["lamp-1", "lamp-2"], "red")
    record = process.engine.prepare(ref)
    assert record.found == {"lamp-1": {"colour": "red"}, "lamp-2": {"colour": "red"}}
    assert '"LAMP=red"' in process.environment(ref)
    assert '"SIGNAL=red"' in process.environment(ref)
    assert process.engine.prepare(ref) == record
    assert process.left()["lamps"] == ["1", "2"]
    process.engine.unprepare(ref)
    assert not any(process.left().values())


def test_device_of_another_claim_is_refused(root: Path, api: ApiServer) -> None:
    process, first, second = Process(root, api), api.add(["lamp-1"], "red-1"), api.add(["lamp-1"], "red-2")
    process.engine.prepare(first)
    with pytest.raises(PrepareError, match="device lamp-1 is in use by claim team/red-1"):
        process.engine.prepare(second)


def test_claims_of_two_colours_clash_whichever_comes_first(root: Path, api: ApiServer) -> None:
    process, red, green = Process(root, api), api.add(["lamp-1"], "red"), api.add(["lamp-2"], "green")
    for first, second in ((red, green), (green, red)):
        process.engine.prepare(first)
        with pytest.raises(PrepareError, match=f"claim {second} is {second.name}, and claim {first} is not"):
            process.engine.prepare(second)
        assert len(process.left()["lamps"]) == 1
        process.engine.unprepare(first)


@contextmanager
def waiting(process: Process, ref: ClaimRef) -> Iterator[CallThread]:
    """While a prepare of the claim waits for the signal."""
    (process.root / SIGNAL).unlink()
    call = CallThread(lambda: process.engine.prepare(ref))
    wait_for(lambda: bool(process.left()["lamps"]), "the lamp")
    yield call


def test_a_prepare_that_waits_holds_no_lock_and_goes_on(root: Path, api: ApiServer) -> None:
    process, ref, other = Process(root, api), api.add(["lamp-1"], "red"), api.add(["lamp-2"], "plain")
    with waiting(process, ref) as call:
        process.engine.prepare(other)
        process.engine.unprepare(other)
        assert not call.over
        (root / SIGNAL).touch()
        call.result()
    assert process.engine.records.get(ref.uid) == process.engine.prepare(ref)


@pytest.mark.parametrize("by_another_process", [False, True])
def test_a_claim_that_is_unprepared_while_it_waits_is_not_prepared(
    root: Path, api: ApiServer, by_another_process: bool
) -> None:
    process, ref = Process(root, api), api.add(["lamp-1"], "red")
    other = Process(root, ApiServer()) if by_another_process else process
    with waiting(process, ref) as call:
        other.engine.unprepare(ref)
        (root / SIGNAL).touch()
        with pytest.raises(StoppedError):
            call.result()
    assert not any(process.left().values())


def test_a_wait_that_takes_too_long_undoes_nothing_and_the_next_call_goes_on(root: Path, api: ApiServer) -> None:
    process, ref = Process(root, api, ClaimTimes(wait=0.05, look=0.01)), api.add(["lamp-1"], "red")
    (root / SIGNAL).unlink()
    with pytest.raises(PrepareError, match="there is no signal yet"):
        process.engine.prepare(ref)
    record = process.engine.records.get(ref.uid)
    assert record is not None
    assert record.state is State.PREPARING
    assert process.left()["lamps"] == ["1"]
    (root / SIGNAL).touch()
    assert process.engine.prepare(ref) == replace(record, state=State.PREPARED, found={"lamp-1": {"colour": "red"}})


def test_a_mark_without_a_record_is_found_and_its_lamp_goes_out(root: Path, api: ApiServer) -> None:
    process, ref, other = Process(root, api), api.add(["lamp-1"], "red"), api.add(["lamp-2"], "red-2")
    process.engine.prepare(ref)
    process.engine.prepare(other)
    process.engine.files.remove(ref.uid)
    assert Process(root, api).left()["lamps"] == ["2"]


def test_a_damaged_record_is_made_anew(root: Path, api: ApiServer) -> None:
    process, ref = Process(root, api), api.add(["lamp-1"], "red")
    record = process.engine.prepare(ref)
    file = root / "claims" / f"{ref.uid}.json"
    file.write_text(file.read_text()[:-20])
    later = Process(root, api)
    assert later.events == ["RecordDamaged", "RecordRebuilt"]
    assert later.engine.prepare(ref) == record


# A kill at every point


@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
def test_a_process_that_is_killed_anywhere_leaves_nothing_that_the_next_cannot_undo(
    root: Path, api: ApiServer, verb: str
) -> None:
    ref, other = api.add(["lamp-1", "lamp-2"], "red"), api.add(["lamp-3"], "red-3")
    points = Points(Trigger(), raise_killed)
    Process(root, api).engine.prepare(other)
    alone = Process(root, api).left()

    def call(process: Process) -> Callable[[ClaimRef, Call], object]:
        return process.engine.prepare if verb == "prepare" else process.engine.unprepare

    def call_at(point: int) -> bool:
        """Whether the call reached this point."""
        process = Process(root, api)
        if verb == "unprepare":
            process.engine.prepare(ref)
        points.trigger.arm(point)
        try:
            call(process)(ref, OWN_WORK)
        except KilledError:
            return True
        finally:
            points.trigger.disarm()
        return False

    with points.of_files(root):
        point = 0
        while call_at(point):
            later = Process(root, api)
            assert later.left()["lamps"] in (["3"], ["1", "2", "3"]), points.names
            later.engine.prepare(ref)
            assert later.left()["lamps"] == ["1", "2", "3"]
            later.engine.unprepare(ref)
            assert later.left() == alone, points.names
            point += 1
    assert point >= 9
