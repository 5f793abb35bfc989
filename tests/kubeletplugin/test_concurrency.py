# SPDX-License-Identifier: Apache-2.0
"""Several calls, several plugins, and callers that go away."""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.threads import CallLimits, HungError
from kubeletplugin.claims.call import Call, kubelet_call
from kubeletplugin.claims.engine import ClaimTimes
from kubeletplugin.claims.model import ClaimRef, State
from kubeletplugin.claims.specs import ClaimSpecs, cdi_names
from kubeletplugin.containers.cdi import CLAIM_KIND, SpecDirectory
from kubeletplugin.errors import PrepareError, StoppedError
from tests.kubeletplugin.inside import FOUR, FOUR_MADE, NOTHING, QUICK, SMALL, ApiServer, CallThread, Plugin
from tests.support.claims import allocated_claim
from tests.support.waiting import wait_for

CREATE, DESTROY = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy"
OTHER = "gpu-5-mig-1g10gb-19-0"
FOR_EVER = 10**6


@pytest.fixture
def plugin(tmp_path: Path, api: ApiServer) -> Iterator[Plugin]:
    made = Plugin(tmp_path, api)
    yield made
    made.stop()


def slow(plugin: Plugin) -> None:
    """The next creation of an instance takes a while."""
    plugin.node.inject(Fault(CREATE, seconds=0.5, times=1))


def hang(plugin: Plugin, call: str = CREATE, before: int = 0) -> None:
    """After so many that pass, calls for GPU 4 do not return until the faults are cleared."""
    if before:
        plugin.node.inject(Fault(call, 4, times=before))
    plugin.node.inject(Fault(call, 4, seconds=FOR_EVER))


@contextmanager
def in_the_middle(plugin: Plugin, ref: ClaimRef) -> Iterator[CallThread]:
    """While the prepare of FOUR is between its first and its second instance. It goes on afterwards."""
    reached, go_on = threading.Event(), threading.Event()

    def wait_there() -> None:
        if plugin.instances():
            reached.set()
            go_on.wait(60)

    call = CallThread(lambda: plugin.engine.prepare(ref, Call(wait_there)))
    assert reached.wait(60)
    try:
        yield call
    finally:
        go_on.set()


# Calls for one claim


def is_being_unprepared(plugin: Plugin, ref: ClaimRef) -> bool:
    """Whether an unprepare of the claim has begun, while another call holds the lock of the claim."""

    def give_up() -> None:
        raise StoppedError("nobody waits")

    try:
        plugin.engine.prepare(ref, Call(give_up))
    except StoppedError as error:
        return "is being unprepared" in str(error)
    return False


def test_a_call_that_is_repeated_while_the_first_runs_gets_the_same(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    slow(plugin)
    calls = [CallThread(lambda: plugin.engine.prepare(ref)) for _ in range(4)]
    first, *others = [call.result() for call in calls]
    assert others == [first] * 3
    assert plugin.api.asked == 1
    assert plugin.instances() == FOUR_MADE
    assert len([step for step in plugin.steps if "MIG device" in step]) == 4


def test_an_unprepare_makes_a_running_prepare_stop_after_its_step(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    with in_the_middle(plugin, ref) as prepare:
        unprepare = CallThread(lambda: plugin.engine.unprepare(ref))
        wait_for(lambda: is_being_unprepared(plugin, ref), "the unprepare to begin")
    unprepare.result()
    with pytest.raises(StoppedError, match="is being unprepared"):
        prepare.result()
    assert plugin.left() == NOTHING
    assert plugin.steps.count("do MIG device 1g.10gb at 0:1") == 1
    assert "do MIG device 3g.40gb at 4:4" not in plugin.steps


def test_prepare_succeeds_after_a_concurrent_unprepare(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    hang(plugin, DESTROY)
    unprepare = CallThread(lambda: plugin.engine.unprepare(ref))
    wait_for(lambda: plugin.left()["specs"] == [], "the unprepare to begin")
    with pytest.raises(StoppedError, match="is being unprepared"):
        plugin.engine.prepare(ref)
    plugin.node.clear_faults()
    unprepare.result()
    plugin.engine.prepare(ref)
    assert plugin.instances() == FOUR_MADE


# Callers that go away


def test_call_without_a_waiting_caller_is_not_begun(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    with pytest.raises(StoppedError, match="kubelet no longer waits for claim team/claim-0"):
        plugin.engine.prepare(ref, kubelet_call(ref, lambda: False))
    assert plugin.left() == NOTHING


def test_interrupted_prepare_is_recorded_and_continued_by_the_next_call(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    with pytest.raises(StoppedError):
        plugin.engine.prepare(ref, kubelet_call(ref, lambda: len(plugin.instances()) < 2))
    assert plugin.instances() == FOUR_MADE[:2]
    assert plugin.record(ref).state is State.PREPARING
    plugin.engine.prepare(ref)
    assert plugin.instances() == FOUR_MADE
    assert plugin.record(ref).state is State.PREPARED
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_prepare_starts_again_after_a_new_allocation(plugin: Plugin, api: ApiServer) -> None:
    ref = api.add(FOUR)
    with pytest.raises(StoppedError):
        plugin.engine.prepare(ref, kubelet_call(ref, lambda: len(plugin.instances()) < 2))
    anew = allocated_claim(ref.name, [OTHER], uid=ref.uid)
    api.claims[ref.uid] = anew
    plugin.engine.prepare(ref)
    assert (plugin.instances(4), plugin.instances(5)) == ([], ["0:1"])


def test_an_unprepare_that_nobody_waits_for_is_finished_when_the_room_is_needed(plugin: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    with pytest.raises(StoppedError):
        plugin.engine.unprepare(ref, kubelet_call(ref, lambda: len(plugin.instances()) > 2))
    assert plugin.instances() == FOUR_MADE[:2]
    assert plugin.record(ref).state is State.UNPREPARING
    plugin.engine.prepare(plugin.api.add([FOUR[2]]))
    assert plugin.instances() == ["2:2"]


def test_or_a_little_later(tmp_path: Path, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api, settings=ClaimTimes(retry=0.05))
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    with pytest.raises(StoppedError):
        plugin.engine.unprepare(ref, kubelet_call(ref, lambda: len(plugin.instances()) > 2))
    plugin.place.access.wake()
    wait_for(lambda: plugin.left() == NOTHING, "the rest to be undone")
    plugin.stop()


# Claims on different GPUs


def test_a_slow_gpu_holds_up_no_other(plugin: Plugin) -> None:
    first, second, whole = plugin.api.add(FOUR), plugin.api.add([OTHER]), plugin.api.add(["gpu-0"])
    with in_the_middle(plugin, first) as call:
        plugin.engine.prepare(second)
        plugin.engine.prepare(whole)
        plugin.engine.unprepare(second)
        assert plugin.instances() == ["0:1"]
    call.result()
    assert plugin.instances() == FOUR_MADE


def test_only_one_of_the_claims_for_a_device_gets_it(plugin: Plugin) -> None:
    refs = [plugin.api.add([SMALL]) for _ in range(6)]
    results: list[object] = []
    barrier = threading.Barrier(len(refs))

    def prepare(ref: ClaimRef) -> None:
        barrier.wait(60)
        try:
            results.append(plugin.engine.prepare(ref))
        except PrepareError as error:
            results.append(str(error))

    for call in [CallThread(partial(prepare, ref)) for ref in refs]:
        call.result()
    assert sum(not isinstance(one, str) for one in results) == 1
    assert all("is in use by claim" in one for one in results if isinstance(one, str))
    assert len(plugin.left()["records"]) == 1


# Shares


def test_the_instance_of_a_shared_device_goes_with_the_last_claim(plugin: Plugin) -> None:
    first, second = plugin.api.share(SMALL, "11"), plugin.api.share(SMALL, "12")
    for ref in (first, second):
        (device,) = plugin.engine.prepare(ref).plan.devices
        assert device.share_id
    assert list(plugin.nodes_of(first).values()) == list(plugin.nodes_of(second).values())
    with pytest.raises(PrepareError, match="in use"):
        plugin.engine.prepare(plugin.api.add([SMALL]))
    plugin.engine.unprepare(first)
    assert plugin.instances() == ["0:1"]
    third = plugin.api.share(SMALL, "13")
    plugin.engine.prepare(third)
    plugin.engine.unprepare(second)
    assert plugin.instances() == ["0:1"]
    plugin.engine.unprepare(third)
    assert plugin.left() == NOTHING


def test_two_shares_of_a_device_in_one_claim_are_two_cdi_devices(plugin: Plugin) -> None:
    ref = plugin.api.add(["gpu-0", "gpu-0"])
    claim = plugin.api.claims[ref.uid]
    assert claim.allocation is not None
    shares = ["0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e11", "0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e12"]
    results = [replace(one, share_id=share) for one, share in zip(claim.allocation.results, shares, strict=True)]
    plugin.api.claims[ref.uid] = replace(claim, allocation=replace(claim.allocation, results=tuple(results)))
    plan = plugin.engine.prepare(ref).plan
    names = SpecDirectory(plugin.cdi, CLAIM_KIND).devices(ref.uid)
    assert sorted(names) == [f"{ref.uid}-gpu-0-{share}" for share in shares]
    assert [cdi_names(ref.uid, one)[0] for one in plan.devices] == [f"{CLAIM_KIND}={name}" for name in sorted(names)]
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_a_share_that_fails_takes_nothing_from_the_others(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = plugin.api.share(SMALL, "11"), plugin.api.share(SMALL, "12")
    plugin.engine.prepare(first)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ClaimSpecs, "write", full)
        with pytest.raises(OSError, match="No space left"):
            plugin.engine.prepare(second)
    assert plugin.instances() == ["0:1"]
    plugin.engine.unprepare(first)
    plugin.engine.unprepare(second)
    assert plugin.left() == NOTHING


def test_shares_come_and_go_at_the_same_time(plugin: Plugin) -> None:
    refs = [plugin.api.share(SMALL, f"{index:02}") for index in range(10, 16)]

    def cycle(ref: ClaimRef) -> None:
        for _ in range(5):
            plugin.engine.prepare(ref)
            assert plugin.nodes_of(ref)
            plugin.engine.unprepare(ref)

    for call in [CallThread(partial(cycle, ref)) for ref in refs]:
        call.result()
    assert plugin.left() == NOTHING


# Calls that hang


@pytest.fixture
def retrying(tmp_path: Path, api: ApiServer) -> Iterator[Plugin]:
    """A plugin that tries again what went wrong all the time."""
    made = Plugin(tmp_path, api, settings=ClaimTimes(retry=0.05))
    yield made
    made.stop()


@contextmanager
def impatient(plugin: Plugin) -> Iterator[None]:
    """While the plugin waits only 1 s for a step. Before and after, the machine may be slow."""
    plugin.place.times = replace(QUICK, step=1.0)
    try:
        yield
    finally:
        plugin.place.times = QUICK


def test_a_prepare_that_hangs_is_said_at_once_ever_after_and_undone_when_it_returns(retrying: Plugin) -> None:
    plugin = retrying
    ref, same_gpu, other_gpu = plugin.api.add(FOUR), plugin.api.add(["gpu-4-mig-1g10gb-19-6"]), plugin.api.add([OTHER])
    hang(plugin, before=1)
    said = rf"^{CREATE} for GPU-.* has not returned within 1 s; nothing can be done there until it"
    with pytest.raises(HungError, match=said), impatient(plugin):
        plugin.engine.prepare(ref)
    for again in (ref, same_gpu):
        with pytest.raises(HungError, match=said):
            plugin.engine.prepare(again)
    with pytest.raises(HungError, match=said):
        plugin.engine.unprepare(ref)
    plugin.engine.prepare(other_gpu)
    plugin.engine.unprepare(other_gpu)
    plugin.node.clear_faults()
    wait_for(lambda: plugin.left() == NOTHING, "the effect of the call to be undone")
    plugin.engine.prepare(ref)
    assert plugin.instances() == FOUR_MADE


def test_an_unprepare_that_hangs_is_finished_when_it_returns(retrying: Plugin) -> None:
    plugin = retrying
    ref = plugin.api.add(FOUR)
    plugin.engine.prepare(ref)
    hang(plugin, DESTROY, before=1)
    with pytest.raises(HungError, match=DESTROY), impatient(plugin):
        plugin.engine.unprepare(ref)
    assert plugin.record(ref).state is State.UNPREPARING
    plugin.node.clear_faults()
    wait_for(lambda: plugin.left() == NOTHING, "the rest to be undone")


def test_reading_the_node_anew_cannot_hang_the_plugin(tmp_path: Path, api: ApiServer) -> None:
    plugin = Plugin(tmp_path, api, times=replace(QUICK, calls=CallLimits(look=1.0)))
    plugin.node.inject(Fault("nvmlSystemGetDriverVersion", seconds=FOR_EVER))
    with pytest.raises(HungError, match=r"^nvmlSystemGetDriverVersion for the driver"):
        plugin.engine.prepare(plugin.api.add(["gpu-99"]))
    plugin.engine.prepare(plugin.api.add([SMALL]))
    plugin.node.clear_faults()
    plugin.stop()


# Two plugins with one folder, as during a rolling update


@pytest.fixture
def successor(plugin: Plugin, api: ApiServer) -> Iterator[Plugin]:
    made = Plugin(plugin.root, api)
    yield made
    made.stop()


def test_claim_is_prepared_by_one_process_and_unprepared_by_another(plugin: Plugin, successor: Plugin) -> None:
    ref = plugin.api.add(FOUR)
    plan = plugin.engine.prepare(ref).plan
    asked = plugin.api.asked
    assert successor.engine.prepare(ref).plan == plan
    assert plugin.api.asked == asked
    successor.engine.unprepare(ref)
    plugin.engine.unprepare(ref)
    assert plugin.left() == NOTHING


def test_plugin_keeps_devices_that_another_process_prepared(plugin: Plugin, successor: Plugin) -> None:
    plugin.engine.prepare(plugin.api.add([SMALL]))
    with pytest.raises(PrepareError, match="is in use by claim team/claim-0"):
        successor.engine.prepare(plugin.api.add([SMALL]))
    shared = [plugin.api.share(OTHER, share) for share in ("11", "12")]
    plugin.engine.prepare(shared[0])
    successor.engine.prepare(shared[1])
    plugin.engine.unprepare(shared[0])
    assert plugin.instances(5) == ["0:1"]
    successor.engine.unprepare(shared[1])
    assert plugin.instances(5) == []


def test_starting_process_leaves_running_work_of_the_other_alone(plugin: Plugin, api: ApiServer) -> None:
    ref = plugin.api.add(FOUR)
    with in_the_middle(plugin, ref) as call:
        successor = Plugin(plugin.root, api)
        assert plugin.instances() == ["0:1"]
        assert successor.record(ref).state is State.PREPARING
    call.result()
    assert plugin.instances() == FOUR_MADE
    assert successor.record(ref).state is State.PREPARED
    successor.stop()


def test_two_plugins_work_on_the_same_claims_at_once(plugin: Plugin, successor: Plugin) -> None:
    refs = [plugin.api.add([f"gpu-{gpu}-mig-1g10gb-19-{start}"]) for gpu in (4, 5) for start in range(3)]

    def cycle(mine: Plugin, ref: ClaimRef) -> None:
        for _ in range(4):
            try:
                mine.engine.prepare(ref)
            except StoppedError:
                continue  # the other one unprepares it
            mine.engine.unprepare(ref)

    calls = [CallThread(partial(cycle, mine, ref)) for ref in refs for mine in (plugin, successor)]
    for call in calls:
        call.result()
    assert plugin.left() == NOTHING
