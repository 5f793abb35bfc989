# SPDX-License-Identifier: Apache-2.0
"""The process is killed in the middle of a call, or told to end, and started again.

tests/faults/test_killed_preparing.py, test_killed_unpreparing.py and test_broken_off.py try all points of these calls.
"""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient
from tests.support.plugin import NOTHING, Plugin, plugin_on, stored_claim

pytestmark = pytest.mark.node

FOUR = ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-2g20gb-14-2", "gpu-4-mig-3g40gb-9-4"]
FOUR_MADE = ["4/0:1", "4/1:1", "4/2:2", "4/4:4"]
CREATE, CREATE_COMPUTE = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"
DESTROY, DESTROY_COMPUTE = "nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"


@pytest.fixture
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    with plugin_on(kubeconfig) as made:
        yield made.start()


@pytest.mark.parametrize(
    ("call", "before", "made"),
    [
        (CREATE, 2, FOUR_MADE[:2]),
        (CREATE_COMPUTE, 3, [*FOUR_MADE[:3], "(4/4:4)"]),
        ("nvmlComputeInstanceGetInfo", 3, FOUR_MADE),
    ],
)
def test_a_prepare_that_was_killed_is_undone_at_the_next_start(
    plugin: Plugin, client: ApiClient, call: str, before: int, made: list[str]
) -> None:
    claim = stored_claim(client, *FOUR)
    plugin.hold(call, before, gpu=4)  # the process looks at the other ones at any time
    running = plugin.begin("Prepare", claim)
    plugin.wait_held()
    plugin.kill()
    assert sorted(plugin.instances()) == sorted(made)
    with pytest.raises(grpc.RpcError):
        running.result()
    plugin.start()
    assert plugin.left() == NOTHING
    assert plugin.prepare(claim)[claim.uid].error == ""
    assert plugin.instances() == FOUR_MADE
    assert plugin.unprepare(claim) == {claim.uid: ""}
    assert plugin.left() == NOTHING


@pytest.mark.parametrize(("call", "before"), [(DESTROY, 0), (DESTROY_COMPUTE, 2)])
def test_an_unprepare_that_was_killed_is_finished_at_the_next_start(
    plugin: Plugin, client: ApiClient, call: str, before: int
) -> None:
    claim = stored_claim(client, *FOUR)
    plugin.prepare(claim)
    plugin.hold(call, before, gpu=4)
    plugin.begin("Unprepare", claim)
    plugin.wait_held()
    plugin.kill()
    assert len(plugin.left()["records"]) == 1
    plugin.start()
    assert plugin.left() == NOTHING
    assert plugin.unprepare(claim) == {claim.uid: ""}


def test_a_call_that_kubelet_repeats_before_recovery_waits_for_it(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, *FOUR)
    plugin.hold(CREATE_COMPUTE, 2)
    plugin.begin("Prepare", claim)
    plugin.wait_held()
    plugin.kill()
    plugin.hold(DESTROY)
    plugin.start("undoing an interrupted prepare or unprepare")
    plugin.wait_held()
    assert "NVIDIA driver is not ready" in plugin.prepare(stored_claim(client, "gpu-0")).popitem()[1].error
    plugin.kill()  # a second time, while recovering
    plugin.start()
    assert plugin.left() == NOTHING


def test_prepared_claims_survive_a_kill(plugin: Plugin, client: ApiClient) -> None:
    claims = [stored_claim(client, "gpu-0"), stored_claim(client, *FOUR)]
    answers = plugin.prepare(*claims)
    before = plugin.left()
    plugin.kill()
    plugin.start()
    assert plugin.left() == before
    assert plugin.prepare(*claims) == answers
    plugin.unprepare(*claims)
    assert plugin.left() == NOTHING


def test_half_written_files_are_swept_at_the_next_start(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, "gpu-0")
    plugin.prepare(claim)
    before = plugin.left()
    plugin.kill()
    (plugin.records / "0c7c1f0e.new").write_text("{")
    spec = next(plugin.cdi.glob("*-claim_*"))
    (plugin.cdi / f".{spec.name}.0123456789abcdef.tmp").write_text("{")
    plugin.start()
    assert plugin.left() == before


def test_sigterm_leaves_prepared_claims(plugin: Plugin, client: ApiClient) -> None:
    claims = [stored_claim(client, "gpu-0"), stored_claim(client, *FOUR)]
    answers = plugin.prepare(*claims)
    before = plugin.left()
    assert plugin.terminate() == 0
    assert plugin.log.splitlines()[-1].endswith("stopped")
    assert not plugin.registration.exists()
    assert not plugin.service.exists()
    assert plugin.left() == before
    plugin.start()
    assert plugin.prepare(*claims) == answers


def test_sigterm_waits_for_running_calls(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, *FOUR)
    plugin.node.inject(Fault(CREATE, seconds=0.3, times=1))
    running = plugin.begin("Prepare", claim)
    plugin.wait_held()
    assert plugin.terminate() == 0
    assert running.result(timeout=60).claims[claim.uid].error == ""
    assert plugin.instances() == FOUR_MADE


def test_sigterm_does_not_wait_for_a_call_that_hangs(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, *FOUR)
    plugin.hold(CREATE, 1)
    plugin.begin("Prepare", claim)
    plugin.wait_held()
    other = stored_claim(client, "gpu-0")
    assert plugin.prepare(other)[other.uid].error == ""  # another GPU is not held up
    assert plugin.terminate() == 0
    assert "stopped while calls were running; the next start undoes their incomplete steps" in plugin.log
    plugin.start()
    assert plugin.left()["records"] == [f"{other.uid}.json"]
    assert plugin.instances() == []


def test_a_second_one_on_the_same_node_gives_way(plugin: Plugin, client: ApiClient) -> None:
    with plugin.spawn() as second:
        try:
            assert second.wait(60) == 1
        finally:
            second.kill()
    said = f"another dra-kubeletplugin runs on this node: it holds {plugin.state / 'lock'}"
    assert [line for line in plugin.log.splitlines() if line.endswith(said)]  # the first one writes to this file too
    claim = stored_claim(client, "gpu-0")
    assert plugin.prepare(claim)[claim.uid].error == ""
    assert plugin.get_info().endpoint == str(plugin.service)


def test_sockets_of_a_killed_one_are_replaced(plugin: Plugin, client: ApiClient) -> None:
    plugin.kill()
    assert plugin.registration.exists()
    assert plugin.service.exists()
    plugin.start()
    assert plugin.get_info().endpoint == str(plugin.service)
    claim = stored_claim(client, "gpu-0")
    assert plugin.prepare(claim)[claim.uid].error == ""
