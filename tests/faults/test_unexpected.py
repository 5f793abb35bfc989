# SPDX-License-Identifier: Apache-2.0
"""An exception that nobody expected, in the work for one claim: it is logged, counted, told and tried again, and every
other claim goes on.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import EVENTS
from tests.kubeletplugin.reports.test_binding import WAITED_FOR, conditions
from tests.kubeletplugin.test_metrics import metrics_of
from tests.support.apiserver import CLAIMS
from tests.support.plugin import stored_claim
from tests.support.waiting import wait_for

from .broken import BrokenPlugin

SMALL = "gpu-4-mig-1g10gb-19-0"


@pytest.fixture
def plugin(kubeconfig: Path) -> Iterator[BrokenPlugin]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        policy = Path(name) / "policy.yaml"
        policy.write_text("gpus: [{bindingConditions: true}]\n", encoding="utf-8")
        plugin = BrokenPlugin(Path(name), kubeconfig, "--http-endpoint=127.0.0.1:0", f"--policy-file={policy}")
        try:
            yield plugin
        finally:
            plugin.kill()


def failures(plugin: BrokenPlugin, work: str) -> float:
    """How often this work failed unexpectedly."""
    return metrics_of(plugin).get("nvidia_dra_unexpected_errors_total", {}).get((work,), 0.0)


def told(client: ApiClient, claim: Any) -> list[str]:
    """What the Events about the claim say."""
    found = client.list(EVENTS, field_selector=f"involvedObject.uid={claim.uid},reason=InternalError").items
    return [one["message"] for one in found]


def require_known(plugin: BrokenPlugin, client: ApiClient, work: str, claim: Any) -> None:
    """The failure is in the log with its traceback, in the metrics, and in an Event."""
    wait_for(lambda: failures(plugin, work), f"{work} to fail")
    assert f"{work} default/{claim.name} failed unexpectedly; other work continues" in plugin.log
    assert f"UnexpectedError: claim {claim.uid}" in plugin.log
    assert "Traceback (most recent call last)" in plugin.log
    (message,) = wait_for(lambda: told(client, claim), "the event")
    assert f"failed unexpectedly to {work}: UnexpectedError('claim {claim.uid}')" in message


def ready_devices(client: ApiClient, claim: Any) -> list[str]:
    """The devices that the claim's status calls ready."""
    status = client.get(CLAIMS, claim.name, "default").get("status") or {}
    return [
        one["device"]
        for one in status.get("devices") or ()
        if any(each["type"] == "Ready" and each["status"] == "True" for each in one.get("conditions") or ())
    ]


def test_a_claim_that_cannot_be_recovered(plugin: BrokenPlugin, client: ApiClient) -> None:
    plugin.start()
    bad, good, later = stored_claim(client, SMALL), stored_claim(client, "gpu-0"), stored_claim(client, "gpu-1")
    before = plugin.prepare(bad, good)
    spec = next(plugin.cdi.glob(f"*{bad.uid}*"))
    plugin.kill()
    spec.unlink()
    plugin.break_(recover_claim=bad.uid)
    plugin.start()
    require_known(plugin, client, "recover claim", bad)
    assert plugin.prepare(good)[good.uid] == before[good.uid]
    assert plugin.prepare(later)[later.uid].error == ""
    assert "UnexpectedError" in plugin.prepare(bad)[bad.uid].error
    assert plugin.unprepare(good, later) == {good.uid: "", later.uid: ""}
    wait_for(lambda: failures(plugin, "recover claim") > 1, "it to be tried again", 60)
    plugin.break_()
    wait_for(spec.exists, "the claim to be recovered", 90)
    assert plugin.prepare(bad)[bad.uid] == before[bad.uid]
    assert plugin.unprepare(bad) == {bad.uid: ""}


def test_a_claim_whose_status_cannot_be_told(plugin: BrokenPlugin, client: ApiClient) -> None:
    bad, good = stored_claim(client, SMALL), stored_claim(client, "gpu-0")
    plugin.break_(report_claim=bad.uid)
    plugin.start()
    plugin.prepare(bad, good)
    require_known(plugin, client, "report claim", bad)
    wait_for(lambda: ready_devices(client, good) == ["gpu-0"], "the status of the other")
    assert ready_devices(client, bad) == []
    plugin.break_()
    wait_for(lambda: ready_devices(client, bad) == [SMALL], "the status", 90)


def test_a_claim_that_cannot_be_swept(plugin: BrokenPlugin, client: ApiClient) -> None:
    plugin.start()
    bad, good = stored_claim(client, SMALL), stored_claim(client, "gpu-0")
    plugin.prepare(bad, good)
    plugin.kill()
    stray = plugin.cdi / "k8s.gpu.nvidia.com-claim_0c7c1f0e.json"
    stray.write_text("{}")
    plugin.break_(sweep_claim=bad.uid)
    plugin.start()
    require_known(plugin, client, "sweep claim", bad)
    wait_for(lambda: not stray.exists(), "the rest of the sweep")
    assert plugin.unprepare(bad, good) == {bad.uid: "", good.uid: ""}


def test_a_claim_whose_binding_conditions_cannot_be_set(plugin: BrokenPlugin, client: ApiClient) -> None:
    bad, good = stored_claim(client, "gpu-1", **WAITED_FOR), stored_claim(client, "gpu-0", **WAITED_FOR)
    plugin.break_(bind_claim=bad.uid)
    plugin.start()
    require_known(plugin, client, "bind claim", bad)
    wait_for(lambda: conditions(client, good), "the conditions of the other")
    assert not conditions(client, bad)
    plugin.break_()
    wait_for(lambda: conditions(client, bad), "its conditions", 90)
