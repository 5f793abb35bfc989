# SPDX-License-Identifier: Apache-2.0
"""Claims with an NVSwitch partition: the process ends, a call fails or hangs, or the disk is full, at any point.

An end of the process is an exception that nothing catches: what runs on the way out of a function is only the release
of locks, which the kernel would do. One test kills a real process. kubelet repeats its call, or makes the opposite one.
"""

import contextlib
import errno
import itertools
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.fabric import FabricCode, FabricError
from dra_driver.gpu.fabric_marks import FabricMarks
from dra_driver.gpu.threads import CallLimits
from dra_driver.kube.api import ApiClient
from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.claims.engine import ClaimTimes
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.node.node import NodeTimes
from tests.kubeletplugin.inside import QUICK, ApiServer, Plugin
from tests.support.nodes import make_node
from tests.support.plugin import POOL, stored_claim
from tests.support.plugin import Plugin as PluginProcess
from tests.support.waiting import wait_for

from .points import Fault, KilledError, Points, Trigger, disk_fails, raise_killed
from .share import share

NODE = """
driverVersion: 570.158.01
cudaVersion: "12.8"
gpus:
- {model: H100-SXM5-80GB, count: 5}
partitions: [[1, 2], [3, 4], [1], [2], [3], [4], [5]]
"""
PAIR, FOUND, BESIDE = 1, 7, 5
OPPOSITE = {"prepare": "unprepare", "unprepare": "prepare"}
SETTINGS = ClaimTimes(sweep=0.2, retry=0.1)
IMPATIENT = replace(QUICK, calls=CallLimits(partition=1.0))
CODES = [FabricCode.GENERIC_ERROR, FabricCode.CONNECTION_NOT_VALID, FabricCode.TIMEOUT, FabricCode.NVLINK_ERROR]


def call_fails(code: FabricCode) -> Fault:
    """A call of Fabric Manager fails."""

    def fault(what: str) -> None:
        if what.startswith(("before ", "after ")):
            raise FabricError(code, what.split()[1])

    return fault


class Struck:
    """A claim for partition PAIR, between another claim and a partition that an administrator activated."""

    def __init__(self, root: Path, times: NodeTimes = QUICK) -> None:
        self._root, self._api, self._times, self.points = root, ApiServer(), times, Points(Trigger(), raise_killed)
        self._description = root / "node.yaml"
        self._description.write_text(NODE)
        make_node(root / "node", str(self._description)).node.fabric.activate(FOUND)
        self.plugin = self._process()
        self.nothing = self.node_state()
        other = self._api.add(["gpu-2"])
        self._insist("prepare", other)
        self.others = [other]
        self.claim = self._api.add(["gpu-0", "gpu-1"])
        self.states = {"unprepare": self.node_state()}
        self._insist("prepare", self.claim)
        self.states["prepare"] = self.node_state()
        assert self.plugin.node.fabric.state.active == [FOUND, BESIDE, PAIR]

    def node_state(self) -> dict[str, Any]:
        """What there is on the node."""
        files = {}
        for one in (self._root / "claims").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                files[one.name] = one.read_text()
        marks = FabricMarks(self._root / "fabric").all()
        specs = sorted(one.name for one in self.plugin.cdi.glob("*-claim_*"))
        return {"active": sorted(self.plugin.node.fabric.state.active), "marks": marks, "files": files, "specs": specs}

    def points_of(self, verb: str) -> list[str]:
        """The points of a call that goes well: calls of Fabric Manager, and changes of files."""
        self.repeat(OPPOSITE[verb], "before")
        self.points.trigger.arm()
        with self.points.of_files(self._root / "claims", self._root / "fabric"):
            getattr(self.plugin.engine, verb)(self.claim)
        self.points.trigger.disarm()
        return list(self.points.names)

    def call_with_fault(self, verb: str, point: int, fault: Fault) -> str:
        """Make the call with this fault. Returns its error."""
        self.repeat(OPPOSITE[verb], "before")
        self.points.fault = fault
        self.points.trigger.arm(point)
        try:
            with self.points.of_files(self._root / "claims", self._root / "fabric"):
                getattr(self.plugin.engine, verb)(self.claim)
        except EXPECTED_ERRORS as error:
            return str(error)
        finally:
            self.points.trigger.disarm()
        return ""

    def repeat(self, verb: str, why: object) -> None:
        """kubelet calls until it succeeds. Then the node is as it should be."""
        self._insist(verb, self.claim, why)
        wait_for(lambda: self.node_state() == self.states[verb], f"the node after {why}")

    def _insist(self, verb: str, claim: ClaimRef, why: object = "no fault") -> None:
        """Call until it succeeds."""

        def succeeds() -> bool:
            try:
                getattr(self.plugin.engine, verb)(claim)
            except EXPECTED_ERRORS:
                return False
            return True

        wait_for(succeeds, f"{verb} after {why}")

    def restart(self) -> None:
        """The next process finds everything as it is."""
        self.plugin.stop()
        self.plugin = self._process()

    def end(self) -> None:
        """Nothing is left in the end."""
        for one in (self.claim, *self.others):
            self._insist("unprepare", one)
        wait_for(lambda: self.node_state() == self.nothing, "the node as it was at first")
        self.plugin.stop()

    def _process(self) -> Plugin:
        return Plugin(
            self._root,
            self._api,
            hardware=str(self._description),
            settings=SETTINGS,
            fabric=self.points.fabric,
            times=self._times,
        )


@pytest.mark.parametrize(("number", "verb"), list(enumerate(OPPOSITE)), ids=OPPOSITE)
def test_a_process_that_ends_anywhere_leaves_nothing_half_done(tmp_path: Path, number: int, verb: str) -> None:
    claim = Struck(tmp_path)
    turns = itertools.cycle([verb, OPPOSITE[verb]])
    for index, point in share(list(enumerate(claim.points_of(verb))), number, 4):
        with pytest.raises(KilledError):
            claim.call_with_fault(verb, index, raise_killed)
        claim.restart()
        assert claim.node_state() in claim.states.values(), point
        claim.repeat(next(turns), point)
    claim.end()


@pytest.mark.parametrize(("number", "verb"), list(enumerate(OPPOSITE)), ids=OPPOSITE)
def test_claim_recovers_from_a_fabric_error_at_every_point(tmp_path: Path, number: int, verb: str) -> None:
    claim = Struck(tmp_path)
    turns = itertools.cycle([verb, OPPOSITE[verb], OPPOSITE[verb], verb])
    faults: list[tuple[int, str, Callable[[], Fault]]] = []
    for index, point in enumerate(claim.points_of(verb)):
        if point.startswith(("before", "after")):
            codes = CODES if point.startswith("before") else [FabricCode.GENERIC_ERROR]
            faults += [(index, point, lambda code=code: call_fails(code)) for code in codes]  # type: ignore[misc]
        else:
            faults.append((index, point, lambda: disk_fails(errno.ENOSPC)))
    for index, point, make in share(faults, number, 2):
        claim.call_with_fault(verb, index, make())
        claim.repeat(next(turns), point)
    claim.end()


@pytest.mark.parametrize("verb", OPPOSITE)
def test_a_change_that_hangs_is_repeated_when_it_has_returned(tmp_path: Path, verb: str) -> None:
    claim = Struck(tmp_path, IMPATIENT)
    names = claim.points_of(verb)
    for turn, when in enumerate(("before", "after")):
        point = names.index(f"{when} {'activate' if verb == 'prepare' else 'deactivate'}")
        returns = threading.Event()
        error = claim.call_with_fault(verb, point, lambda _, returns=returns: returns.wait(60))  # type: ignore[misc]
        assert "has not returned" in error or verb == "unprepare"  # kubelet need not wait for a deactivation
        returns.set()
        claim.repeat(verb if turn else OPPOSITE[verb], when)
    claim.end()


def test_fabric_manager_restarts_while_no_process_runs_that_was_killed_in_an_activation(
    kubeconfig: Path, client: ApiClient
) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        description = Path(name) / "node.yaml"
        description.write_text(NODE)
        hardware = make_node(Path(name) / "node", str(description), POOL)
        fabric = hardware.node.fabric
        plugin = PluginProcess(Path(name), kubeconfig, hardware=hardware).start()
        kept, claim = stored_claim(client, "gpu-2"), stored_claim(client, "gpu-0", "gpu-1")
        try:
            assert not plugin.prepare(kept)[kept.uid].error
            plugin.hold("fmActivateFabricPartition")
            plugin.begin("Prepare", claim)
            plugin.wait_held()
            assert plugin.process is not None
            plugin.process.send_signal(signal.SIGKILL)
            plugin.kill()
            fabric.start()
            plugin.start()
            wait_for(lambda: fabric.state.told, "the list")
            wait_for(lambda: not plugin.prepare(claim)[claim.uid].error, "the claim")
            assert sorted(fabric.state.active) == [PAIR, BESIDE]
            for one in (kept, claim):
                wait_for(lambda one=one: not plugin.unprepare(one)[one.uid], "the claim to go")  # type: ignore[misc]
            assert fabric.state.active == []
            assert FabricMarks(plugin.state / "fabric").all() == ()
        finally:
            plugin.kill()
