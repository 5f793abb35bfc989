# SPDX-License-Identifier: Apache-2.0
"""What the plugin remembers, and what it makes of files that somebody damaged."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import Placement
from dra_driver.names import AdditionalDevice
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.model import ClaimRef, Device, Plan, Record, State, Step
from kubeletplugin.claims.records import VERSION, Records, record_format
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.errors import PrepareError, RecordError
from kubeletplugin.features.additional_devices import AdditionalDevicesStep
from kubeletplugin.features.memory_limits.step import MemoryLimitStep
from kubeletplugin.kinds.gpu import GpuKind
from kubeletplugin.kinds.mig.device import MigKind
from kubeletplugin.kinds.mig.instance import InstanceStep, LookStep
from kubeletplugin.kinds.mig.mode import MigModeStep

DEVICE = MigDevice("GPU-4", 19, Placement(0, 1), 4, "1g.10gb", 1)
WHOLE = GpuKind("GPU-0", 0, "0000:1b:00.0")
MIG = "gpu-4-mig-1g10gb-19-0"


def files_in(folder: Path) -> RecordFiles[Record]:
    """The record files in a folder, which exists."""
    files = RecordFiles(folder, record_format(gpu_driver()))
    files.make()
    return files


def records_in(folder: Path) -> Records:
    """All records in a folder."""
    return Records(files_in(folder), lambda *_: None)


def record(uid: str = "u1", state: State = State.PREPARED, admin: bool = False) -> Record:
    """A record of a claim with one MIG device and one whole GPU that an administrator looks at."""
    devices = (Device(MIG, "mig", MigKind(DEVICE), admin), Device("gpu-0", "look", WHOLE, admin=True))
    steps: tuple[Step, ...] = (MigModeStep("GPU-4", True, True), InstanceStep(MIG, DEVICE))
    if admin:
        steps = (LookStep(MIG, DEVICE),)
    plan = Plan(ClaimRef("team", f"claim-{uid}", uid), "node-a", devices, steps)
    return Record(state, "boot", plan, {MIG: {"gi": 7, "ci": 0, "uuid": "MIG-7"}})


@pytest.mark.parametrize("admin", [True, False])
@pytest.mark.parametrize("state", State)
def test_a_record_comes_back_as_it_was(tmp_path: Path, state: State, admin: bool) -> None:
    written = record(state=state, admin=admin)
    files_in(tmp_path).save(written)
    assert files_in(tmp_path).read("u1") == written
    assert json.loads((tmp_path / "u1.json").read_text())["version"] == VERSION


@pytest.mark.parametrize("address", ["", "0000:1b:00.0"])
def test_where_a_graphics_device_is_comes_back_and_is_written_only_if_it_is_known(tmp_path: Path, address: str) -> None:
    mig = replace(DEVICE, profile="1g.10gb+gfx", pci_address=address)
    device = Device(MIG, "mig", MigKind(mig))
    plan = Plan(ClaimRef("team", "claim", "u1"), "node-a", (device,), (InstanceStep(MIG, mig),))
    files_in(tmp_path).save(Record(State.PREPARING, "boot", plan))
    assert ("pciAddress" in (tmp_path / "u1.json").read_text()) is bool(address)
    read = files_in(tmp_path).read("u1").plan
    found = [
        *(one.kind.device for one in read.devices if isinstance(one.kind, MigKind)),
        *(step.device for step in read.steps if isinstance(step, InstanceStep)),
    ]
    assert [(one.pci_address, one.profile, one.minor, one.slices) for one in found] == [
        (address, "1g.10gb+gfx", 4, 1)
    ] * 2
    assert read == plan


def test_steps_that_only_containers_notice_come_back(tmp_path: Path) -> None:
    written = record()
    steps = (
        MemoryLimitStep("GPU-4", MIG, 1024),
        AdditionalDevicesStep("GPU-4", MIG, (AdditionalDevice.GDS, AdditionalDevice.MOFED)),
    )
    written = replace(written, plan=replace(written.plan, steps=(*written.plan.steps, *steps)))
    files_in(tmp_path).save(written)
    assert files_in(tmp_path).read("u1") == written


def test_permission_to_switch_is_read_back(tmp_path: Path) -> None:
    files_in(tmp_path).save(record())
    mode = files_in(tmp_path).read("u1").plan.steps[0]
    assert isinstance(mode, MigModeStep)
    assert mode.may_switch


def test_a_record_of_an_older_version_counts_as_damaged(tmp_path: Path) -> None:
    files_in(tmp_path).save(record())
    file = tmp_path / "u1.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": VERSION - 1}))
    with pytest.raises(ValueError, match=f"{VERSION - 1} is too old: this plugin supports {VERSION}"):
        files_in(tmp_path).read("u1")


def test_a_share_has_a_cdi_device_of_its_own(tmp_path: Path) -> None:
    share = Device("gpu-0", "gpu", WHOLE, share_id="0f3c1a52")
    written = Record(State.PREPARED, "boot", Plan(ClaimRef("team", "claim", "u1"), "node-a", (share,)))
    files_in(tmp_path).save(written)
    assert files_in(tmp_path).read("u1") == written
    assert share.cdi_name == "gpu-0-0f3c1a52"


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    records = files_in(tmp_path)
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
    lambda text: json.dumps({**json.loads(text), "steps": [{"step": "instance", "device": "gpu-9"}]}),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_set_aside_and_hides_no_other(tmp_path: Path, damage: Callable[[str], str]) -> None:
    records = files_in(tmp_path)
    records.save(record("u1"))
    records.save(record("u2"))
    file = tmp_path / "u1.json"
    file.write_text(damage(file.read_text()))
    heard: list[ClaimRef] = []
    all_records = Records(records, lambda claim, _: heard.append(claim))
    assert [one.plan.claim.uid for one in all_records.all()] == ["u2"]
    assert all_records.get("u1") is None
    assert (tmp_path / "u1.damaged").exists()
    assert all_records.unreadable() == {"u1"}
    assert [claim.uid for claim in heard] == ["u1"]
    records.save(record("u1"))  # prepared again
    assert {one.plan.claim.uid for one in all_records.all()} == {"u1", "u2"}
    assert all_records.unreadable() == set()


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
    records = files_in(tmp_path)
    records.save(record())
    file = tmp_path / "u1.json"
    file.write_text(text(file.read_text()))
    all_records = Records(records, lambda *_: None)
    all_records.all()
    assert all_records.damaged() == {"u1": claim}
    assert (tmp_path / "u1.damaged").exists()
    assert all_records.forget_damaged("u1")
    assert not all_records.forget_damaged("u1")
    assert all_records.damaged() == {}
    assert not (tmp_path / "u1.damaged").exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_only_records_damaged_by_a_loss_of_power_are_dropped(tmp_path: Path, damage: Callable[[str], str]) -> None:
    records = files_in(tmp_path)
    for uid in ("u1", "u2", "u3"):
        records.save(record(uid))
    torn, newer = tmp_path / "u1.json", tmp_path / "u3.json"
    torn.write_text(damage(torn.read_text()))
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "version": VERSION + 1}))
    records.drop_unreadable()
    assert records.stamps().keys() == {"u2", "u3"}
    assert records.read("u2") == record("u2")


def test_a_newer_record_stays_and_its_claim_is_left_alone(tmp_path: Path) -> None:
    records = files_in(tmp_path)
    records.save(record())
    file = tmp_path / "u1.json"
    newer = json.dumps({**json.loads(file.read_text()), "version": VERSION + 1})
    file.write_text(newer)
    all_records = Records(records, lambda *_: None)
    for _ in range(2):
        with pytest.raises(RecordError, match="newer version"):
            all_records.get("u1")
    assert all_records.all() == []
    assert all_records.unreadable() == {"u1"}
    assert file.read_text() == newer


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", "a" * 65, "ü"])
def test_a_uid_that_is_none_never_becomes_a_file(tmp_path: Path, uid: str) -> None:
    with pytest.raises(RecordError):
        records_in(tmp_path).get(uid)


def test_a_record_that_cannot_be_looked_at_is_not_taken_for_none(tmp_path: Path) -> None:
    all_records = records_in(tmp_path / "claims")
    (tmp_path / "claims").rmdir()
    (tmp_path / "claims").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        all_records.get("u1")


def test_two_claims_cannot_have_one_device(tmp_path: Path) -> None:
    all_records = records_in(tmp_path)
    all_records.open(record("u1"))
    with pytest.raises(PrepareError, match=rf"device {MIG} is in use by claim team/claim-u1 \(UID u1\)"):
        all_records.open(record("u2"))
    assert all_records.get("u2") is None
    all_records.close("u1")
    all_records.open(record("u2"))


def test_admins_may_look_at_a_device_in_use(tmp_path: Path) -> None:
    all_records = records_in(tmp_path)
    all_records.open(record("u1"))
    all_records.open(record("u2", admin=True))
    assert len(all_records.all()) == 2


class TestTwoProcesses:
    """An old plugin and its successor, with one folder."""

    @pytest.fixture
    def both(self, tmp_path: Path) -> list[Records]:
        return [records_in(tmp_path), records_in(tmp_path)]

    def test_records_of_another_process_are_seen(self, both: list[Records]) -> None:
        mine, other = both
        mine.open(record("u1", State.PREPARING))
        assert other.get("u1") == record("u1", State.PREPARING)
        other.save(record("u1"))
        assert mine.get("u1") == record("u1")
        mine.close("u1")
        assert other.get("u1") is None
        assert other.all() == []

    def test_a_device_of_the_others_claim_is_taken(self, both: list[Records]) -> None:
        mine, other = both
        mine.all()
        other.open(record("u1"))
        with pytest.raises(PrepareError, match="in use by claim team/claim-u1"):
            mine.open(record("u2"))

    def test_only_one_sets_a_damaged_record_aside(self, both: list[Records], tmp_path: Path) -> None:
        (tmp_path / "u1.json").write_text("{")
        assert [all_records.all() for all_records in both] == [[], []]
        assert [all_records.unreadable() for all_records in both] == [{"u1"}, {"u1"}]


def test_a_step_that_another_claim_needs_is_known(tmp_path: Path) -> None:
    all_records = records_in(tmp_path)
    first, second = (shared(uid) for uid in ("u1", "u2"))
    all_records.open(first)
    assert all_records.marks_of_others("u1") == frozenset()
    all_records.open(second)
    assert all_records.marks_of_others("u1") == {step.mark for step in second.plan.steps}
    all_records.save(shared("u2", State.UNPREPARING))
    assert all_records.marks_of_others("u1") == frozenset()


def shared(uid: str, state: State = State.PREPARED) -> Record:
    """A record of a share of a MIG device."""
    device = Device(MIG, "mig", MigKind(DEVICE), share_id=f"share-{uid}")
    plan = Plan(ClaimRef("team", f"claim-{uid}", uid), "node-a", (device,), (InstanceStep(MIG, DEVICE),))
    return Record(state, "boot", plan)
