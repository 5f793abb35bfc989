# SPDX-License-Identifier: Apache-2.0
"""The steps of channels and daemons on the engine: kills at every point, restarts, updates, nodes without a driver."""

import errno
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.domains.names import DRIVER
from dra_driver.gpu.nvml import Nvml
from dra_driver.gpu.options import Hardware
from dra_driver.kube.api import ApiClient
from dra_driver.names import DRIVER_NAME
from kubeletplugin.claims.boundary import ClaimBoundary
from kubeletplugin.claims.call import OWN_WORK, Call
from kubeletplugin.claims.engine import ClaimTimes, Engine
from kubeletplugin.claims.files import RecordFiles
from kubeletplugin.claims.model import ClaimRef, Device, Driver, Plan, State
from kubeletplugin.claims.planner import Planner
from kubeletplugin.claims.records import record_format
from kubeletplugin.claims.specs import ClaimSpecs
from kubeletplugin.containers import cdi
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.domainservice import DomainClaims
from kubeletplugin.drivers import DOMAIN_PHASES
from kubeletplugin.errors import ClaimGoneError, PrepareError
from kubeletplugin.features.domain.folder import DomainFolder
from kubeletplugin.features.domain.plan import domain_steps
from kubeletplugin.features.domain.version1 import read_version_1
from kubeletplugin.kinds.channel import ChannelKind
from kubeletplugin.kinds.daemon import DaemonKind
from kubeletplugin.kinds.domain import DomainKind, DomainName
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.node import Node
from tests.faults.points import KilledError, Points, Trigger, disk_fails, raise_killed
from tests.kubeletplugin.inside import CallThread
from tests.support.waiting import wait_for

from .domains import NOTHING, Left, add_channel, add_daemon, add_domain, left, running_daemon
from .inside import DomainPlugin, domain_plugin

FIRST, SECOND = (DomainName(f"6e1b3f8e-0c1d-4d1c-8b0a-{digit * 12}", "team", "d") for digit in "12")
QUICK = ClaimTimes(wait=0.05, look=0.01)


class BareChannel(ChannelKind):
    """A channel whose container gets nothing, so that its spec needs no NVIDIA driver."""

    __slots__ = ()

    @property
    def is_given(self) -> bool:
        return False


class BareDaemon(DaemonKind):
    """A daemon whose container gets only its folder."""

    __slots__ = ()

    def edits(self, place: object, device: Device) -> cdi.ContainerEdits:
        return cdi.ContainerEdits(env=("A=b",))


def no_nvml() -> Nvml:
    raise AssertionError("claims of this node need no NVML")


class Process:
    """A process of the second driver on a node without an NVIDIA driver. `plans` has the plan of each claim."""

    def __init__(self, root: Path, plans: dict[str, Plan], times: ClaimTimes = QUICK, boot_id: str = "boot-1") -> None:
        self.root = root
        self.events: list[str] = []
        hardware = Hardware(no_nvml, root, root, root, root, root / "sys", root)
        folders = NodeFolders(root / "registry", root / DRIVER_NAME, root / "cdi", root / "shm", hardware)
        self.node = Node("node-a", boot_id, folders, yields=False)
        self.folder = DomainFolder(folders.domain_folder)

        def plan(_node: Node, ref: ClaimRef, _claim: object) -> Plan:
            return plans[ref.uid]

        def fetch(ref: ClaimRef) -> object:
            if ref.uid not in plans:
                raise ClaimGoneError("it is gone")
            return object()

        driver = Driver(DRIVER, (BareChannel, BareDaemon), DOMAIN_PHASES, plan, {1: read_version_1})
        self.engine = Engine(
            Planner(driver, self.node, fetch),  # type: ignore[arg-type]
            RecordFiles(self.folder.records, record_format(driver)),
            ClaimSpecs(self.node, CommonSpec(folders.cdi_root, folders.driver_root), kind=cdi.DOMAIN_CLAIM_KIND),
            ClaimBoundary(lambda _, reason, __: self.events.append(reason)),
            times,
        )
        self.claims = DomainClaims(self.engine, lambda _: None)
        self.claims.begin()

    def left(self) -> Left:
        return left(self.folder.path, self.root / "cdi")

    def end(self) -> None:
        self.node.threads.end()


class Claims(dict[str, Plan]):
    """The plans of claims."""

    def add(self, kind: DomainKind, name: str) -> ClaimRef:
        """A claim of this name for one device."""
        ref = ClaimRef("team", name, f"uid-{name}")
        device = "daemon-0" if isinstance(kind, DaemonKind) else "channel-0"
        steps = tuple(domain_steps(kind, "kube-system", host_managed=False))
        self[ref.uid] = Plan(ref, "node-a", (Device(device, "r", kind),), steps)
        return ref

    def channel(self, name: str, domain: DomainName = FIRST) -> ClaimRef:
        return self.add(BareChannel(domain, "c.1"), name)

    def daemon(self, name: str, domain: DomainName = FIRST) -> ClaimRef:
        return self.add(BareDaemon(domain, "c.1"), name)


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
def start(tmp_path: Path, claims: Claims) -> Iterator[Callable[..., Process]]:
    """Starts processes on one node, one after the other or beside each other."""
    made: list[Process] = []

    def begin(times: ClaimTimes = QUICK, boot_id: str = "boot-1") -> Process:
        made.append(Process(tmp_path, claims, times, boot_id))
        return made[-1]

    yield begin
    for process in made:
        process.end()


def test_a_node_without_a_driver_prepares_and_unprepares(start: Callable[..., Process], claims: Claims) -> None:
    process, channel, daemon = start(), claims.channel("c"), claims.daemon("d")
    process.engine.prepare(daemon)
    with running_daemon(process.folder.of_domain(FIRST.uid)):
        process.engine.prepare(channel)
    assert process.left().domain == FIRST.uid
    assert process.left().folders == (FIRST.uid,)
    process.engine.unprepare(channel)
    process.engine.unprepare(daemon)
    assert process.left() == NOTHING


def test_a_wait_that_ends_at_its_deadline_undoes_nothing_even_if_the_process_ends(
    start: Callable[..., Process], claims: Claims
) -> None:
    process, channel = start(), claims.channel("c")
    with pytest.raises(PrepareError, match="the IMEX daemon of ComputeDomain team/d on this node does not run yet"):
        process.engine.prepare(channel)
    process.folder.mark.unlink()
    for _ in range(2):
        process = start()
        record = process.engine.records.get(channel.uid)
        assert record is not None
        assert record.state is State.PREPARING
        assert process.left().domain == FIRST.uid
    with running_daemon(process.folder.of_domain(FIRST.uid)):
        process.engine.prepare(channel)
    process.engine.unprepare(channel)
    assert process.left() == NOTHING


def test_a_wait_holds_no_lock_of_any_process(start: Callable[..., Process], claims: Claims) -> None:
    patient = ClaimTimes(wait=60.0, look=0.01)
    process, other = start(patient), start(patient)
    channel, daemon = claims.channel("c"), claims.daemon("d")
    waiting = CallThread(lambda: process.engine.prepare(channel))
    wait_for(lambda: process.left().domain == FIRST.uid, "the mark")
    other.engine.prepare(daemon)
    assert not waiting.over
    with running_daemon(process.folder.of_domain(FIRST.uid)):
        waiting.result()
    assert other.engine.prepare(channel).state is State.PREPARED


@pytest.mark.parametrize(("first", "second"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_a_second_domain_gets_the_node_after_the_first(
    start: Callable[..., Process], claims: Claims, first: DomainName, second: DomainName
) -> None:
    process = start()
    before, after = claims.channel("before", first), claims.channel("after", second)
    with running_daemon(process.folder.of_domain(first.uid)):
        process.engine.prepare(before)
    with running_daemon(process.folder.of_domain(second.uid)):
        with pytest.raises(
            PrepareError, match=r"the node is in ComputeDomain team/d .* because of team/before; a node"
        ):
            process.engine.prepare(after)
        assert process.left().domain == first.uid
        process.engine.unprepare(before)
        process.engine.prepare(after)
    assert process.left().domain == second.uid


def test_a_second_daemon_gets_the_node_after_the_first(start: Callable[..., Process], claims: Claims) -> None:
    process, before, after = start(), claims.daemon("before"), claims.daemon("after")
    process.engine.prepare(before)
    with pytest.raises(
        PrepareError, match=r"the node still has the daemon of ComputeDomain team/d \(claim team/before"
    ):
        process.engine.prepare(after)
    process.engine.unprepare(before)
    process.engine.prepare(after)
    assert process.left().folders == (FIRST.uid,)


def test_a_prepared_channel_does_not_wait_again(start: Callable[..., Process], claims: Claims) -> None:
    process, channel = start(), claims.channel("c")
    with running_daemon(process.folder.of_domain(FIRST.uid)):
        record = process.engine.prepare(channel)
    later = start()
    assert later.engine.prepare(channel) == record
    assert later.events == []


def test_marks_of_an_earlier_boot_are_gone(start: Callable[..., Process], claims: Claims) -> None:
    process, channel, daemon = start(), claims.channel("c"), claims.daemon("d")
    process.engine.prepare(daemon)
    with running_daemon(process.folder.of_domain(FIRST.uid)):
        process.engine.prepare(channel)
    process.folder.mark.with_name(".domain.new").touch()
    assert start(boot_id="boot-2").left() == NOTHING


def test_no_claim_is_prepared_before_marks_of_an_earlier_boot_are_gone(
    tmp_path: Path, start: Callable[..., Process], claims: Claims
) -> None:
    fails = disk_fails(errno.ENOSPC)
    points = Points(Trigger(), lambda what: fails(what) if "boot-id" in what else None, starts=True)
    with points.of_files(tmp_path):
        points.trigger.arm(0, lasting=True)
        process, daemon = start(), claims.daemon("d")
        with pytest.raises(OSError, match="No space left"):
            process.claims.prepare(daemon, OWN_WORK)
        process.claims.unprepare(daemon, OWN_WORK)
        points.trigger.disarm()
    (device,) = process.claims.prepare(daemon, OWN_WORK)
    assert device.name == "daemon-0"


def test_objects_without_a_claim_are_removed(start: Callable[..., Process], claims: Claims) -> None:
    process, daemon = start(), claims.daemon("d")
    process.engine.prepare(daemon)
    process.folder.join(SECOND.uid)
    process.folder.make(SECOND.uid)
    trash = process.folder.path / ".trash"
    (trash / "x/y").mkdir(parents=True)
    later = start()
    assert later.left().domain == ""
    assert later.left().folders == (FIRST.uid,)
    assert not trash.exists()


def test_nothing_is_swept_while_a_record_is_unreadable(start: Callable[..., Process], claims: Claims) -> None:
    process, daemon, channel = start(), claims.daemon("d"), claims.channel("c")
    process.engine.prepare(daemon)
    with running_daemon(process.folder.of_domain(FIRST.uid)):
        process.engine.prepare(channel)
    before = process.left()
    for ref in (daemon, channel):
        path = process.engine.files.path(ref.uid)
        path.write_bytes(path.read_bytes().replace(b'"version": 7', b'"version": 8'))
    assert start().left() == before


@pytest.mark.parametrize(("verb", "kind"), list(itertools.product(("prepare", "unprepare"), ("channel", "daemon"))))
def test_killed_at_any_point_the_next_process_goes_on(
    tmp_path: Path, start: Callable[..., Process], claims: Claims, verb: str, kind: str
) -> None:
    """The daemon of the domain is ready when a channel is prepared. Another claim of the domain stays as it is."""
    ref = claims.channel("c") if kind == "channel" else claims.daemon("d")
    other = claims.daemon("other") if kind == "channel" else claims.channel("other")
    process = start()
    points = Points(Trigger(), raise_killed)
    folder = process.folder.of_domain(FIRST.uid)
    if kind == "channel":
        process.engine.prepare(other)
    with running_daemon(folder):
        if kind == "daemon":
            process.engine.prepare(other)
    base = process.left()

    def ready() -> AbstractContextManager[object]:
        return running_daemon(folder) if kind == "channel" else nullcontext()

    def call(process: Process) -> Callable[[ClaimRef, Call], object]:
        return process.engine.prepare if verb == "prepare" else process.engine.unprepare

    def call_at(point: int) -> bool:
        """Whether the call reached this point."""
        process = start()
        with ready():
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

    with points.of_files(tmp_path):
        point = 0
        while call_at(point):
            later = start()
            found = later.left()
            recorded = f"{ref.uid}.json" in found.records
            assert not [name for name in (*found.records, *found.specs) if name.endswith((".new", ".tmp"))], (
                points.names
            )
            assert (found.domain == FIRST.uid) == (recorded or kind == "daemon"), points.names
            assert later.events == [], points.names
            with ready():
                later.engine.prepare(ref)
                later.engine.unprepare(ref)
            assert later.left() == base, points.names
            point += 1
    assert point >= 8


@pytest.mark.parametrize(("verb", "kind"), list(itertools.product(("prepare", "unprepare"), ("channel", "daemon"))))
def test_a_change_of_a_file_that_fails_is_told_and_the_next_call_goes_on(
    tmp_path: Path, start: Callable[..., Process], claims: Claims, verb: str, kind: str
) -> None:
    process = start()
    ref = claims.channel("c") if kind == "channel" else claims.daemon("d")
    points = Points(Trigger(), disk_fails(errno.ENOSPC))
    folder = process.folder.of_domain(FIRST.uid)

    def ready() -> AbstractContextManager[object]:
        return running_daemon(folder) if kind == "channel" else nullcontext()

    def call_at(point: int, *, lasting: bool) -> None:
        with ready():
            if verb == "unprepare":
                process.engine.prepare(ref)
            points.trigger.arm(point, lasting=lasting)
            with suppress(OSError):
                process.engine.prepare(ref) if verb == "prepare" else process.engine.unprepare(ref)
            points.trigger.disarm()

    with points.of_files(tmp_path):
        call_at(-1, lasting=False)
        process.engine.unprepare(ref)
        count = len(points.names)
        for point, lasting in itertools.product(range(count), (False, True)):
            call_at(point, lasting=lasting)
            with ready():
                assert process.engine.prepare(ref).state is State.PREPARED, (point, lasting)
            assert process.left().domain == (FIRST.uid if kind == "channel" else "")
            process.engine.unprepare(ref)
            found = start().left()  # half-written specs stay as long as the first process runs
            specs = tuple(name for name in found.specs if not name.endswith(".tmp"))
            assert replace(found, specs=specs) == NOTHING, (point, lasting)
    assert count >= 8


def test_something_else_in_the_place_of_a_mark_or_a_folder_is_put_aside(
    start: Callable[..., Process], claims: Claims
) -> None:
    process, channel, daemon = start(), claims.channel("c"), claims.daemon("d")
    process.folder.mark.mkdir()
    process.folder.domains.mkdir()
    process.folder.of_domain(FIRST.uid).write_text("a file")
    process.engine.prepare(daemon)
    with running_daemon(process.folder.of_domain(FIRST.uid)):
        process.engine.prepare(channel)
    assert process.left().domain == FIRST.uid
    assert process.folder.of_domain(FIRST.uid).is_dir()


# The previous release


def old_record(ref: ClaimRef, kind: str, state: str) -> bytes:
    """A record of version 1."""
    return json.dumps(
        {
            "version": 1,
            "claim": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
            "state": state,
            "bootID": "boot-1",
            "pool": "node-a",
            "type": kind,
            "domain": FIRST.to_json(),
            "clique": "c.1",
            "allChannels": False,
            "hostManaged": False,
            "devices": [{"name": f"{kind}-0", "request": "r"}],
        }
    ).encode()


@pytest.mark.node
def test_an_update_loses_nothing_of_claims_of_the_previous_release(
    short_path: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    uid = add_domain(admin)
    prepared, waiting, daemon = add_channel(admin, uid), add_channel(admin, uid), add_daemon(admin, uid)
    with domain_plugin(short_path, kubeconfig) as plugin:
        plugin.prepared(daemon)
        with running_daemon(plugin.folder.of_domain(uid)):
            plugin.prepared(prepared)
        call = plugin.begin("Prepare", waiting)
        plugin.waits(waiting)
        plugin.claims.end()
        call.result(60)
        before = plugin.left()
        for ref in (prepared, waiting, daemon):
            rewrite_as_version_1(plugin, ref)
    (short_path / DRIVER / "boot-id").unlink()  # the previous release had none
    with domain_plugin(short_path, kubeconfig) as plugin:
        assert plugin.left() == before
        assert plugin.events == []
        plugin.prepared(prepared, daemon)
        with running_daemon(plugin.folder.of_domain(uid)):
            plugin.prepared(waiting)
        assert plugin.events == []
        plugin.unprepared(prepared, waiting, daemon)
        assert plugin.left() == NOTHING


def rewrite_as_version_1(plugin: DomainPlugin, ref: ClaimRef) -> None:
    """Write the record of a claim as the previous release wrote it."""
    record = plugin.record(ref)
    assert record is not None
    kind = record.plan.devices[0].kind
    assert isinstance(kind, DomainKind)
    value = json.loads(old_record(ref, kind.TAG, record.state.value))
    request = record.plan.devices[0].request
    value |= {"domain": kind.domain.to_json(), "clique": kind.clique, "pool": record.plan.pool}
    value["devices"][0]["request"] = request
    plugin.records.path(ref.uid).write_text(json.dumps(value))
    assert plugin.record(ref) == record


def test_a_channel_that_waited_in_the_previous_release_goes_on(start: Callable[..., Process], claims: Claims) -> None:
    process, channel = start(), claims.channel("c")
    process.engine.files.path(channel.uid).write_bytes(old_record(channel, "channel", "Preparing"))
    process = start()
    assert process.left().domain == FIRST.uid
    process.engine.unprepare(channel)
    assert process.left() == NOTHING


# The NVIDIA driver


@pytest.mark.node
def test_claims_outlive_a_driver_that_is_not_there(short_path: Path, kubeconfig: Path, admin: ApiClient) -> None:
    uid = add_domain(admin)
    channel, daemon = add_channel(admin, uid), add_daemon(admin, uid)
    with domain_plugin(short_path, kubeconfig) as plugin:
        plugin.prepared(daemon)
        with running_daemon(plugin.folder.of_domain(uid)):
            plugin.prepared(channel)
        before = plugin.left()
        plugin.folder.mark.unlink()
    with domain_plugin(short_path, kubeconfig, driver=False) as plugin:
        assert plugin.left() == before
        assert plugin.events == []  # containers notice nothing of a mark
        assert "the NVIDIA driver is not ready" in plugin.prepare(add_daemon(admin, uid)).error
        plugin.unprepared(channel)
        assert plugin.left().domain == ""
        plugin.start_access()
        plugin.prepared(daemon)
        plugin.unprepared(daemon)
        assert plugin.left() == NOTHING
