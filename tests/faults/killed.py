# SPDX-License-Identifier: Apache-2.0
"""A claim of a scenario on its way from unprepared to prepared and back, with a process that is killed on it."""

from collections.abc import Iterable
from typing import Any

from dra_driver.kube.api import ApiClient
from tests.support.plugin import stored_claim

from .processes import KillablePlugin
from .scenarios import Scenario, Wanted

OPPOSITE = {"Prepare": "Unprepare", "Unprepare": "Prepare"}


class KilledClaim:
    """The claim, and the state of the node with and without it."""

    def __init__(self, plugin: KillablePlugin, client: ApiClient, scenario: Scenario) -> None:
        def add(wanted: Wanted) -> Any:
            return stored_claim(client, *wanted.devices, **wanted.result)

        self.plugin = plugin
        if scenario.needs_mps:
            plugin.start_mps()
        self.nothing = plugin.node_state()
        self.others = [add(one) for one in scenario.others]
        self.call("Prepare", *self.others)
        self.claim = add(scenario.claim)
        self.states = {"Unprepare": plugin.node_state()}
        self.answer = self.call("Prepare", self.claim)
        self.states["Prepare"] = plugin.node_state()
        assert self.states["Prepare"] != self.states["Unprepare"]

    def call(self, verb: str, *claims: Any) -> dict[str, Any]:
        """Make a call, which goes well."""
        answer = dict(self.plugin.call(verb, claims, "v1")(timeout=60).claims)
        errors = {uid: claim.error for uid, claim in answer.items() if claim.error}
        assert errors == {}, f"{verb}: {self.plugin.log}"
        return answer

    def call_and_check(self, verb: str) -> None:
        """Make a call for the claim in any state, and check the answer and the state of the node."""
        answer = self.call(verb, self.claim)
        assert verb == "Unprepare" or answer == self.answer
        assert self.plugin.node_state() == self.states[verb]

    def kill_in_call(self, verb: str, point: int) -> str:
        """A new process is killed in its first call. Returns the point, or nothing if there are fewer points."""
        self.call_and_check(OPPOSITE[verb])
        self.plugin.kill()
        self.plugin.start()
        self.plugin.trigger.arm(point)
        return self.plugin.call_and_die(verb, self.claim)

    def kill_at_points(self, verb: str, points: Iterable[int]) -> None:
        """Kill at these points of a call while it has them, and at the first one if it has none of them; then kubelet
        repeats the call, or makes the opposite one.
        """
        killed = 0
        for point in points:
            where = self.kill_in_call(verb, point) or ("" if killed else self.kill_in_call(verb, 0))
            if not where:
                break
            killed += 1
            print(point, where)
            self.recover(where)
            self.call_and_check(OPPOSITE[verb] if where.startswith("after ") else verb)
        assert killed
        self.end()

    def recover(self, where: str) -> None:
        """The next process starts, and brings the claim to either state."""
        self.plugin.start()
        assert self.plugin.node_state() in self.states.values(), where

    def end(self) -> None:
        """Everything is unprepared, and nothing is left."""
        self.call("Unprepare", self.claim, *self.others)
        assert self.plugin.node_state() == self.nothing
