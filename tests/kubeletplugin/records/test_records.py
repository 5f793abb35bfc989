# SPDX-License-Identifier: Apache-2.0
"""What the plugin remembers, and what it makes of files that somebody damaged."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.nvml import Placement
from dra_driver.names import AdditionalDevice
from kubeletplugin.errors import PrepareError, RecordError
from kubeletplugin.kinds.targets import ClaimRef, MigInstanceIds, MigSlot, WholeGpu
from kubeletplugin.plans.plan import Plan, PlannedDevice
from kubeletplugin.records.files import State
from kubeletplugin.records.format import VERSION, Record, Records
from kubeletplugin.records.ledger import Ledger
from kubeletplugin.steps import InstanceStep, LookStep, MigModeStep, Step

SLOT = MigSlot("GPU-4", 4, "1g.10gb", 19, 1, Placement(0, 1))
WHOLE = WholeGpu("GPU-0", 0, "0000:1b:00.0")
MIG = "gpu-4-mig-1g10gb-19-0"
READ_AS = {
    1: {
        "version": 1,
        "state": "Prepared",
        "bootID": "boot",
        "claim": {"namespace": "team", "name": "claim-u1", "uid": "u1"},
        "pool": "node-a",
        "devices": [
            {
                "name": MIG,
                "request": "mig",
                "mig": {
                    "gpuUUID": "GPU-4",
                    "minor": 4,
                    "profile": "1g.10gb",
                    "profileID": 19,
                    "slices": 1,
                    "start": 0,
                    "size": 1,
                },
            },
            {"name": "gpu-0", "request": "look", "gpu": {"uuid": "GPU-0", "minor": 0, "pciAddress": "0000:1b:00.0"}},
        ],
        "instances": {MIG: {"gi": 7, "ci": 0, "uuid": "MIG-7", "made": True}},
    },
}


def record(uid: str = "u1", state: State = State.PREPARED, admin: bool = False) -> Record:
    """A record of a claim with one MIG device and one whole GPU that an administrator looks at."""
    devices = (PlannedDevice(MIG, "mig", SLOT, admin), PlannedDevice("gpu-0", "look", WHOLE, admin=True))
    steps: tuple[Step, ...] = (MigModeStep("GPU-4", True, True), InstanceStep(MIG, SLOT))
    if admin:
        steps = (LookStep(MIG, SLOT),)
    plan = Plan(ClaimRef("team", f"claim-{uid}", uid), "node-a", devices, steps)
    return Record(state, "boot", plan, {MIG: MigInstanceIds(7, 0, "MIG-7", made=False)})


@pytest.mark.parametrize("admin", [True, False])
@pytest.mark.parametrize("state", State)
def test_a_record_comes_back_as_it_was(tmp_path: Path, state: State, admin: bool) -> None:
    written = record(state=state, admin=admin)
    Records(tmp_path).save(written)
    assert Records(tmp_path).read("u1") == written
    assert json.loads((tmp_path / "u1.json").read_text())["version"] == 2


@pytest.mark.parametrize("address", ["", "0000:1b:00.0"])
def test_where_a_graphics_device_is_comes_back_and_is_written_only_if_it_is_known(tmp_path: Path, address: str) -> None:
    slot = replace(SLOT, profile="1g.10gb+gfx", pci_address=address)
    device = PlannedDevice(MIG, "mig", slot)
    plan = Plan(ClaimRef("team", "claim", "u1"), "node-a", (device,), (InstanceStep(MIG, slot),))
    Records(tmp_path).save(Record(State.PREPARING, "boot", plan))
    assert ("pciAddress" in (tmp_path / "u1.json").read_text()) is bool(address)
    read = Records(tmp_path).read("u1").plan
    targets = [
        *(one.target for one in read.devices if isinstance(one.target, MigSlot)),
        *(step.slot for step in read.steps if isinstance(step, InstanceStep)),
    ]
    assert [one.pci_address for one in targets] == [address] * 2
    assert read == replace(plan, devices=(PlannedDevice(MIG, "mig", replace(slot, pci_address="")),)), "the same slot"


def test_additional_devices_come_back_and_need_a_newer_plugin(tmp_path: Path) -> None:
    written = record()
    device = replace(written.plan.devices[0], additional_devices=(AdditionalDevice.GDS, AdditionalDevice.MOFED))
    written = replace(written, plan=replace(written.plan, devices=(device, *written.plan.devices[1:])))
    Records(tmp_path).save(written)
    assert Records(tmp_path).read("u1") == written
    assert json.loads((tmp_path / "u1.json").read_text())["version"] == 6


def test_what_may_be_switched_comes_back_too(tmp_path: Path) -> None:
    Records(tmp_path).save(record())
    mode = Records(tmp_path).read("u1").plan.steps[0]
    assert isinstance(mode, MigModeStep)
    assert mode.may_switch


def test_records_of_version_1_are_read_with_the_steps_that_they_meant(tmp_path: Path) -> None:
    (tmp_path / "u1.json").write_text(json.dumps(READ_AS[1]))
    read = Records(tmp_path).read("u1")
    assert read.version == 1
    assert read.plan.steps == (MigModeStep("GPU-4", True), InstanceStep(MIG, SLOT))
    assert read.instances == {MIG: MigInstanceIds(7, 0, "MIG-7")}
    assert [one.target for one in read.plan.devices] == [SLOT, WHOLE]


def test_a_share_has_a_cdi_device_of_its_own_unless_its_record_is_older(tmp_path: Path) -> None:
    share = PlannedDevice("gpu-0", "gpu", WHOLE, share_id="0f3c1a52")
    limited = replace(share, memory_limit=1024)
    records, file = Records(tmp_path), tmp_path / "u1.json"
    for device in (limited, share):
        written = Record(State.PREPARED, "boot", Plan(ClaimRef("team", "claim", "u1"), "node-a", (device,)))
        records.save(written)
        assert records.read("u1") == written
    assert json.loads(file.read_text())["version"] == 5
    assert share.cdi_name == "gpu-0-0f3c1a52"
    file.write_text(file.read_text().replace('"version": 5', '"version": 4'))
    old = records.read("u1")
    assert old.plan.devices[0].cdi_name == "gpu-0"
    records.save(old)
    assert json.loads(file.read_text())["version"] == 2
    assert records.read("u1") == old


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.save(record())
    records.remove("u1")
    records.remove("u1")
    assert records.stamps() == {}


DAMAGES: list[Callable[[str], str]] = [
    lambda text: "",
    lambda text: text[: len(text) // 2],
    lambda text: "\0" * len(text),
    lambda text: text.replace('"Prepared"', '"Perhaps"'),
    lambda text: text.replace('"mig"', '"gim"'),
    lambda text: text.replace('"migMode"', '"mood"'),
    lambda text: text.replace('"u1"', '"u3"'),
    lambda text: json.dumps([text]),
    lambda text: json.dumps({**json.loads(text), "surprise": 1}),
    lambda text: json.dumps({**json.loads(text), "steps": [{"kind": "instance", "device": "gpu-9"}]}),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_set_aside_and_hides_no_other(tmp_path: Path, damage: Callable[[str], str]) -> None:
    records = Records(tmp_path)
    records.save(record("u1"))
    records.save(record("u2"))
    file = tmp_path / "u1.json"
    file.write_text(damage(file.read_text()))
    heard: list[ClaimRef] = []
    ledger = Ledger(records, lambda claim, _: heard.append(claim))
    assert [one.plan.claim.uid for one in ledger.all()] == ["u2"]
    assert ledger.get("u1") is None
    assert (tmp_path / "u1.damaged").exists()
    assert ledger.unreadable() == {"u1"}
    assert [claim.uid for claim in heard] == ["u1"]
    records.save(record("u1"))  # prepared again
    assert {one.plan.claim.uid for one in ledger.all()} == {"u1", "u2"}
    assert ledger.unreadable() == set()


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        (lambda text: text[: len(text) // 2], ClaimRef("team", "claim-u1", "u1")),
        (lambda text: text.replace("{", "("), ClaimRef("team", "claim-u1", "u1")),
        (lambda text: text.replace("claim-u1", "../../x")[:-2], ClaimRef("", "", "u1")),
        (lambda text: "", ClaimRef("", "", "u1")),
    ],
)
def test_a_damaged_record_tells_its_claim_if_it_can(
    tmp_path: Path, text: Callable[[str], str], claim: ClaimRef
) -> None:
    records = Records(tmp_path)
    records.save(record())
    file = tmp_path / "u1.json"
    file.write_text(text(file.read_text()))
    ledger = Ledger(records)
    ledger.all()
    assert ledger.damaged() == {"u1": claim}
    ledger.settle_damaged("u1")
    assert ledger.damaged() == {}
    assert (tmp_path / "u1.damaged").exists() is bool(claim.name)
    assert ledger.settled_damaged() == ([claim] if claim.name else [])
    ledger.settle_damaged("u1", gone=True)
    assert not (tmp_path / "u1.damaged").exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_a_loss_of_power_left_is_dropped_and_nothing_else(tmp_path: Path, damage: Callable[[str], str]) -> None:
    records = Records(tmp_path)
    for uid in ("u1", "u2", "u3"):
        records.save(record(uid))
    torn, newer = tmp_path / "u1.json", tmp_path / "u3.json"
    torn.write_text(damage(torn.read_text()))
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "version": VERSION + 1}))
    records.drop_unreadable()
    assert records.stamps().keys() == {"u2", "u3"}
    assert records.read("u2") == record("u2")


def test_a_newer_record_stays_and_its_claim_is_left_alone(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.save(record())
    file = tmp_path / "u1.json"
    newer = json.dumps({**json.loads(file.read_text()), "version": VERSION + 1})
    file.write_text(newer)
    ledger = Ledger(records)
    for _ in range(2):
        with pytest.raises(RecordError, match="newer version"):
            ledger.get("u1")
    assert ledger.all() == []
    assert ledger.unreadable() == {"u1"}
    assert file.read_text() == newer


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", "a" * 65, "ü"])
def test_a_uid_that_is_none_never_becomes_a_file(tmp_path: Path, uid: str) -> None:
    with pytest.raises(RecordError):
        Ledger(Records(tmp_path)).get(uid)


def test_a_record_that_cannot_be_looked_at_is_not_taken_for_none(tmp_path: Path) -> None:
    ledger = Ledger(Records(tmp_path / "claims"))
    (tmp_path / "claims").rmdir()
    (tmp_path / "claims").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        ledger.get("u1")


def test_two_claims_cannot_have_one_device(tmp_path: Path) -> None:
    ledger = Ledger(Records(tmp_path))
    ledger.open(record("u1"))
    with pytest.raises(PrepareError, match=rf"device {MIG} is in use by claim team/claim-u1 \(UID u1\)"):
        ledger.open(record("u2"))
    assert ledger.get("u2") is None
    ledger.close("u1")
    ledger.open(record("u2"))


def test_admins_may_look_at_a_device_in_use(tmp_path: Path) -> None:
    ledger = Ledger(Records(tmp_path))
    ledger.open(record("u1"))
    ledger.open(record("u2", admin=True))
    assert len(ledger.all()) == 2


class TestTwoProcesses:
    """An old plugin and its successor, with one folder."""

    @pytest.fixture
    def ledgers(self, tmp_path: Path) -> list[Ledger]:
        return [Ledger(Records(tmp_path)), Ledger(Records(tmp_path))]

    def test_each_sees_what_the_other_writes(self, ledgers: list[Ledger]) -> None:
        mine, other = ledgers
        mine.open(record("u1", State.PREPARING))
        assert other.get("u1") == record("u1", State.PREPARING)
        other.save(record("u1"))
        assert mine.get("u1") == record("u1")
        mine.close("u1")
        assert other.get("u1") is None
        assert other.all() == []

    def test_a_device_of_the_others_claim_is_taken(self, ledgers: list[Ledger]) -> None:
        mine, other = ledgers
        mine.all()
        other.open(record("u1"))
        with pytest.raises(PrepareError, match="in use by claim team/claim-u1"):
            mine.open(record("u2"))

    def test_only_one_sets_a_damaged_record_aside(self, ledgers: list[Ledger], tmp_path: Path) -> None:
        (tmp_path / "u1.json").write_text("{")
        assert [ledger.all() for ledger in ledgers] == [[], []]
        assert [ledger.unreadable() for ledger in ledgers] == [{"u1"}, {"u1"}]


def test_a_step_that_another_claim_needs_is_known(tmp_path: Path) -> None:
    ledger = Ledger(Records(tmp_path))
    first, second = (shared(uid) for uid in ("u1", "u2"))
    ledger.open(first)
    assert ledger.needed_by_others("u1") == frozenset()
    ledger.open(second)
    assert ledger.needed_by_others("u1") == set(second.plan.steps)
    ledger.save(shared("u2", State.UNPREPARING))
    assert ledger.needed_by_others("u1") == frozenset()


def shared(uid: str, state: State = State.PREPARED) -> Record:
    """A record of a share of a MIG device."""
    device: Any = PlannedDevice(MIG, "mig", SLOT, share_id=f"share-{uid}")
    plan = Plan(ClaimRef("team", f"claim-{uid}", uid), "node-a", (device,), (InstanceStep(MIG, SLOT),))
    return Record(state, "boot", plan)
