# SPDX-License-Identifier: Apache-2.0
"""The same for unprepare (see test_killed_preparing); and the next process is killed at every point of its start, while
it brings together what the first one left: at every sixtieth point of some 140, at all with FAULTS_EVERY=1.
"""

import pytest

from dra_driver.kube.api import ApiClient

from .killed import OPPOSITE, KilledClaim
from .processes import KillablePlugin
from .scenarios import SCENARIOS, Scenario
from .share import points


@pytest.mark.parametrize(("number", "scenario"), list(enumerate(SCENARIOS.values())), ids=SCENARIOS)
def test_killed_anywhere_in_an_unprepare(
    plugin: KillablePlugin, client: ApiClient, number: int, scenario: Scenario
) -> None:
    KilledClaim(plugin, client, scenario).kill_at_points("Unprepare", points(number % 12, 36))


@pytest.mark.parametrize(("verb", "point"), [("Prepare", 50), ("Unprepare", 20)])
def test_killed_once_more_anywhere_in_the_recovery(
    plugin: KillablePlugin, client: ApiClient, verb: str, point: int
) -> None:
    claim = KilledClaim(plugin, client, SCENARIOS["a bit of everything"])
    for turn, again in enumerate(points(point // 10, 60)):
        assert claim.kill_in_call(verb, point)
        where = plugin.start_and_die(again)
        if not where:
            break
        print(again, where)
        claim.recover(where)
        claim.call_and_check(verb if turn % 2 else OPPOSITE[verb])
    claim.end()
