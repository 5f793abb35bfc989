# SPDX-License-Identifier: Apache-2.0
"""The process is killed before and after every call of NVML, and before every change of a file:
at all of these points with FAULTS_EVERY=1, else at every thirty-sixth, in each scenario from another one on.

kubelet repeats its call, or, where the pod is gone, makes the opposite one. The moment after a call of NVML is the one
before the next point, so that both are tried at each: the opposite after points "after ...", the same after others.
Nothing may tell the outcome from that of calls that went well. Each process is killed in its first call, as later ones
need not ask NVML for everything.
"""

import pytest

from dra_driver.kube.api import ApiClient

from .killed import KilledClaim
from .processes import KillablePlugin
from .scenarios import SCENARIOS, Scenario
from .share import points


@pytest.mark.parametrize(("number", "scenario"), list(enumerate(SCENARIOS.values())), ids=SCENARIOS)
def test_killed_anywhere_in_a_prepare(
    plugin: KillablePlugin, client: ApiClient, number: int, scenario: Scenario
) -> None:
    KilledClaim(plugin, client, scenario).kill_at_points("Prepare", points(3 * number, 36))
