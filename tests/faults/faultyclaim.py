# SPDX-License-Identifier: Apache-2.0
"""A claim of a scenario inside of one process, whose calls get a fault at a chosen point."""

import shutil
import tempfile
from pathlib import Path

from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.claims.engine import ClaimTimes
from kubeletplugin.claims.model import ClaimRef
from tests.kubeletplugin.inside import DYNAMIC, ApiServer, Plugin
from tests.support.mps import MpsProcess
from tests.support.waiting import wait_for

from .nodestate import NodeState, node_state
from .points import Fault, Points, Trigger
from .processes import NODE
from .scenarios import Scenario, restrict

Verb = str
QUICK = ClaimTimes(sweep=0.2, retry=0.1)
OPPOSITE: dict[Verb, Verb] = {"prepare": "unprepare", "unprepare": "prepare"}


def nothing(_: str) -> None:
    """No fault."""


class FaultyClaim:
    """The claim, and the state of the node with and without it."""

    def __init__(self, root: Path, scenario: Scenario, settings: ClaimTimes = QUICK) -> None:
        if scenario.needs_mps:
            root = Path(tempfile.mkdtemp(prefix="dra-"))  # short: sockets are in it
        self._root, self._settings = root, settings
        self.half_written_counts = True
        self.points = Points(Trigger(), nothing)
        self._api = api = ApiServer()
        self.plugin = self._process()
        self._mps = MpsProcess(root, self.plugin.node, root / "mps.log").start() if scenario.needs_mps else None
        restrict(self.plugin.node)
        self.nothing = self.node_state()
        self.others = [api.add(list(one.devices), **one.result) for one in scenario.others]
        for other in self.others:
            self.plugin.engine.prepare(other)
        self.claim = api.add(list(scenario.claim.devices), **scenario.claim.result)
        self.states = {"unprepare": self.node_state()}
        self.plugin.engine.prepare(self.claim)
        self.states["prepare"] = self.node_state()

    def node_state(self) -> NodeState:
        """All that there is on the node; what was left half written only if it counts."""
        taken = node_state(self.plugin.node, self.plugin.root, self.plugin.cdi)
        return taken if self.half_written_counts else {**taken, "half written": []}

    def points_of(self, verb: Verb) -> list[str]:
        """The points of a call without a fault, in their order."""
        self.restore_state_before(verb)
        self.points.trigger.arm()
        self._call(verb, self.claim)
        self.points.trigger.disarm()
        return list(self.points.names)

    def restore_state_before(self, verb: Verb) -> None:
        """Restore the state that the call changes. The plugin has then read what it reads only once from NVML."""
        for one in (verb, OPPOSITE[verb]):
            self.repeat(one, "before")

    def call_with_fault(self, verb: Verb, point: int, fault: Fault, *, lasting: bool = False) -> str:
        """Make the call with this fault. Returns its error, if any."""
        self.points.fault = fault
        self.points.trigger.arm(point, lasting=lasting)
        try:
            self._call(verb, self.claim)
        except EXPECTED_ERRORS as error:
            return str(error)
        finally:
            self.points.trigger.disarm()
        return ""

    def repeat(self, verb: Verb, why: object) -> None:
        """Repeat the call, as kubelet does, until it succeeds and the node has the expected state. The state may come
        after the answer: if a GPU is out of reach, or a mode cannot be switched back.
        """
        try:
            wait_for(lambda: self._goes_well(verb), f"{verb} after {why}")
            wait_for(lambda: self.node_state() == self.states[verb], f"the node after {why}")
        except AssertionError:
            assert self.node_state() == self.states[verb], why
            raise

    def end(self) -> None:
        """A new process finds everything as it is, unprepares it, and nothing is left."""
        self.plugin.stop()
        self.plugin = self._process()
        for one in (self.claim, *self.others):
            self.plugin.engine.unprepare(one)
        assert self.node_state() == self.nothing
        self.plugin.stop()
        if self._mps is not None:
            self._mps.stop()
            shutil.rmtree(self._root)

    def _process(self) -> Plugin:
        return Plugin(
            self._root,
            self._api,
            hardware=str(NODE),
            policy=DYNAMIC,
            settings=self._settings,
            gateway=self.points.gateway,
        )

    def _goes_well(self, verb: Verb) -> bool:
        try:
            self._call(verb, self.claim)
        except EXPECTED_ERRORS:
            return False
        return True

    def _call(self, verb: Verb, ref: ClaimRef) -> None:
        (self.plugin.engine.prepare if verb == "prepare" else self.plugin.engine.unprepare)(ref)
