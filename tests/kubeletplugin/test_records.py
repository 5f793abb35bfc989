# SPDX-License-Identifier: Apache-2.0
"""What the plugin remembers, and what it makes of files that somebody damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Placement
from kubeletplugin.ledger import Ledger
from kubeletplugin.plan import ClaimRef, MigInstanceIds, MigSlot, Plan, PlannedDevice, PrepareError, WholeGpu
from kubeletplugin.records import Record, RecordError, Records, State

SLOT = MigSlot("GPU-4", 4, "1g.10gb", 19, 1, Placement(0, 1))


def record(
    uid: str = "u1", device: str = "gpu-4-mig-1g10gb-19-0", state: State = State.PREPARED, admin: bool = False
) -> Record:
    """A record of a claim with one MIG device and one whole GPU that an administrator looks at."""
    devices = (
        PlannedDevice(device, "mig", SLOT, admin),
        PlannedDevice("gpu-0", "look", WholeGpu("GPU-0", 0, "0000:1b:00.0"), admin=True),
    )
    plan = Plan(ClaimRef("team", f"claim-{uid}", uid), "node-a", devices)
    return Record(state, "boot", plan, {device: MigInstanceIds(7, 0, "MIG-7", made=False)})


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    Records(tmp_path).save(record())
    assert Records(tmp_path).load() == {"u1": record()}


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.save(record())
    records.remove("u1")
    records.remove("u1")
    assert records.load() == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "\0" * len(text),
        lambda text: text.replace('"Prepared"', '"Perhaps"'),
        lambda text: text.replace('"mig"', '"gim"'),
        lambda text: json.dumps([text]),
        lambda text: json.dumps({**json.loads(text), "surprise": 1}),
    ],
)
def test_a_damaged_record_is_set_aside_and_hides_no_other(tmp_path: Path, damage: Callable[[str], str]) -> None:
    records = Records(tmp_path)
    records.save(record("u1"))
    records.save(record("u2"))
    file = tmp_path / "u1.json"
    file.write_text(damage(file.read_text()))
    assert list(records.load()) == ["u2"]
    assert (tmp_path / "u1.damaged").exists()


def test_a_newer_record_stays_and_its_claim_is_left_alone(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.save(record())
    file = tmp_path / "u1.json"
    newer = json.dumps({**json.loads(file.read_text()), "version": 2})
    file.write_text(newer)
    ledger = Ledger(records)
    with pytest.raises(RecordError, match="newer version"):
        ledger.get("u1")
    assert file.read_text() == newer


@pytest.mark.parametrize("uid", ["", "../../etc/passwd", "a/b", "a" * 65, "ü"])
def test_a_uid_that_is_none_never_becomes_a_file(tmp_path: Path, uid: str) -> None:
    with pytest.raises(RecordError):
        Ledger(Records(tmp_path)).get(uid)


def test_two_claims_cannot_have_one_device(tmp_path: Path) -> None:
    ledger = Ledger(Records(tmp_path))
    ledger.open(record("u1"))
    with pytest.raises(PrepareError, match=r"in use by claim team/claim-u1 \(UID u1\)"):
        ledger.open(record("u2"))
    ledger.close("u1")
    ledger.open(record("u2"))


def test_admins_may_look_at_a_device_in_use(tmp_path: Path) -> None:
    ledger = Ledger(Records(tmp_path))
    ledger.open(record("u1"))
    ledger.open(record("u2", admin=True))
    assert len(ledger.all()) == 2
