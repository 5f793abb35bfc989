# SPDX-License-Identifier: Apache-2.0
"""The plugin is killed before and after the calls of NVML, and before the changes of its files, by which a GPU goes to
a virtual machine and comes back. All of these points are tried with FAULTS_EVERY=1, else a share of them.
"""

import tempfile
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from tests.support.fuse import needs_fuse
from tests.support.plugin import stored_claim

from .processes import KillablePlugin
from .share import patiently, points
from .test_vfio_writes import A_GPU_OR_GROUP, DEVICE, ONLY, OPPOSITE, a_kernel, bring, require_everything_back

pytestmark = [needs_fuse]


@patiently
@pytest.mark.parametrize("verb", OPPOSITE)
@A_GPU_OR_GROUP
def test_a_plugin_that_is_killed_anywhere_brings_everything_back(
    kubeconfig: Path, client: ApiClient, others: tuple[int, ...], verb: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        policy = Path(name) / "machines.yaml"
        policy.write_text(ONLY)
        plugin = KillablePlugin(Path(name), kubeconfig, f"--policy-file={policy}")
        with a_kernel(Path(name) / "node", others) as kernel:
            plugin.start()
            claim, before = stored_claim(client, DEVICE), kernel.picture()
            try:
                for point in points(list(OPPOSITE).index(verb), 120 if others else 60):
                    bring(plugin, claim, OPPOSITE[verb])
                    plugin.kill()
                    plugin.start()
                    plugin.trigger.arm(point)
                    where = plugin.call_and_die(verb.capitalize(), claim)
                    if not where:
                        break
                    plugin.start()
                    bring(plugin, claim, verb if point % 2 else OPPOSITE[verb])
                    bring(plugin, claim, "unprepare")
                    require_everything_back(kernel, before, plugin.state, where)
            finally:
                plugin.kill()
