# SPDX-License-Identifier: Apache-2.0
"""A claim of a scenario inside of one process, on its way from unprepared to prepared and back, struck on it."""

import shutil
import tempfile
from pathlib import Path

from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.claims.engine import ClaimTimes
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.node.node import NodeTimes
from tests.kubeletplugin import inside
from tests.kubeletplugin.inside import DYNAMIC, ApiServer, Plugin
from tests.support.mps import MpsProcess
from tests.support.waiting import wait_for

from .picture import Picture, picture
from .points import Dial, Points, Strike
from .processes import NODE
from .scenarios import Scenario, restrict

Verb = str
QUICK = ClaimTimes(sweep=0.2, retry=0.1)
OPPOSITE: dict[Verb, Verb] = {"prepare": "unprepare", "unprepare": "prepare"}


def nothing(_: str) -> None:
    """No strike."""


class StruckClaim:
    """The claim, and what belongs to either state."""

    def __init__(
        self, root: Path, scenario: Scenario, settings: ClaimTimes = QUICK, times: NodeTimes = inside.QUICK
    ) -> None:
        if scenario.needs_mps:
            root = Path(tempfile.mkdtemp(prefix="dra-"))  # short: sockets are in it
        self._root, self._settings, self._times = root, settings, times
        self.half_written_counts = True
        self.points = Points(Dial(), nothing)
        self._api = api = ApiServer()
        self.plugin = self._process()
        self._mps = MpsProcess(root, self.plugin.node, root / "mps.log").start() if scenario.needs_mps else None
        restrict(self.plugin.node)
        self.nothing = self.picture()
        self.others = [api.add(list(one.devices), **one.result) for one in scenario.others]
        for other in self.others:
            self.plugin.engine.prepare(other)
        self.claim = api.add(list(scenario.claim.devices), **scenario.claim.result)
        self.pictures = {"unprepare": self.picture()}
        self.plugin.engine.prepare(self.claim)
        self.pictures["prepare"] = self.picture()

    def picture(self) -> Picture:
        """All that there is on the node; what was left half written only if it counts."""
        taken = picture(self.plugin.node, self.plugin.root, self.plugin.cdi)
        return taken if self.half_written_counts else {**taken, "half written": []}

    def points_of(self, verb: Verb) -> list[str]:
        """The points of a call that goes well, in their order."""
        self.ready_for(verb)
        self.points.dial.arm()
        self._call(verb, self.claim)
        self.points.dial.rest()
        return list(self.points.names)

    def ready_for(self, verb: Verb) -> None:
        """The state that the call changes, in a plugin that has asked NVML for what it asks only once."""
        for one in (verb, OPPOSITE[verb]):
            self.bring(one, "before")

    def strike(self, verb: Verb, point: int, strike: Strike, *, lasting: bool = False) -> str:
        """The call, struck; the error that it ends with, if any."""
        self.points.strike = strike
        self.points.dial.arm(point, lasting=lasting)
        try:
            self._call(verb, self.claim)
        except EXPECTED_ERRORS as error:
            return str(error)
        finally:
            self.points.dial.rest()
        return ""

    def bring(self, verb: Verb, why: object) -> None:
        """kubelet calls until it hears that all is well; then it is, or is soon where it need not wait: a GPU that is
        out of reach, a mode that cannot be switched back.
        """
        try:
            wait_for(lambda: self._goes_well(verb), f"{verb} after {why}")
            wait_for(lambda: self.picture() == self.pictures[verb], f"the node after {why}")
        except AssertionError:
            assert self.picture() == self.pictures[verb], why
            raise

    def end(self) -> None:
        """A new process finds everything as it is, unprepares it, and nothing is left."""
        self.plugin.stop()
        self.plugin = self._process()
        for one in (self.claim, *self.others):
            self.plugin.engine.unprepare(one)
        assert self.picture() == self.nothing
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
            times=self._times,
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
