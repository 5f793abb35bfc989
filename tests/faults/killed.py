# SPDX-License-Identifier: Apache-2.0
"""A claim of a scenario on its way from unprepared to prepared and back, with a process that is killed on it."""

from collections.abc import Iterable
from typing import Any

from dra_driver.kube.api import ApiClient
from tests.support.plugin import stored_claim

from .processes import DoomedPlugin
from .scenarios import Scenario, Wanted

OPPOSITE = {"Prepare": "Unprepare", "Unprepare": "Prepare"}


class KilledClaim:
    """The claim, and what belongs to either state."""

    def __init__(self, plugin: DoomedPlugin, client: ApiClient, scenario: Scenario) -> None:
        def add(wanted: Wanted) -> Any:
            return stored_claim(client, *wanted.devices, **wanted.result)

        self.plugin = plugin
        if scenario.needs_mps:
            plugin.start_mps()
        self.nothing = plugin.picture()
        self.others = [add(one) for one in scenario.others]
        self.call("Prepare", *self.others)
        self.claim = add(scenario.claim)
        self.pictures = {"Unprepare": plugin.picture()}
        self.answer = self.call("Prepare", self.claim)
        self.pictures["Prepare"] = plugin.picture()
        assert self.pictures["Prepare"] != self.pictures["Unprepare"]

    def call(self, verb: str, *claims: Any) -> dict[str, Any]:
        """Make a call, which goes well."""
        answer = dict(self.plugin.call(verb, claims, "v1")(timeout=60).claims)
        errors = {uid: claim.error for uid, claim in answer.items() if claim.error}
        assert errors == {}, f"{verb}: {self.plugin.log}"
        return answer

    def bring(self, verb: str) -> None:
        """Make a call for the claim, in whatever state it is, and look at what it leads to."""
        answer = self.call(verb, self.claim)
        assert verb == "Unprepare" or answer == self.answer
        assert self.plugin.picture() == self.pictures[verb]

    def strike(self, verb: str, point: int) -> str:
        """A new process is struck in its first call; where, or nothing when there are not so many points."""
        self.bring(OPPOSITE[verb])
        self.plugin.kill()
        self.plugin.start()
        self.plugin.dial.arm(point)
        return self.plugin.struck(verb, self.claim)

    def strike_everywhere(self, verb: str, points: Iterable[int]) -> None:
        """Strike at these points of a call while it has them, and at the first one if it has none of them; then kubelet
        repeats the call, or makes the opposite one.
        """
        struck = 0
        for point in points:
            where = self.strike(verb, point) or ("" if struck else self.strike(verb, 0))
            if not where:
                break
            struck += 1
            print(point, where)
            self.recover(where)
            self.bring(OPPOSITE[verb] if where.startswith("after ") else verb)
        assert struck
        self.end()

    def recover(self, where: str) -> None:
        """The next process starts, and brings the claim to either state."""
        self.plugin.start()
        assert self.plugin.picture() in self.pictures.values(), where

    def end(self) -> None:
        """Everything is unprepared, and nothing is left."""
        self.call("Unprepare", self.claim, *self.others)
        assert self.plugin.picture() == self.nothing
