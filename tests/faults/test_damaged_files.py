# SPDX-License-Identifier: Apache-2.0
"""Files that are empty, cut short, full of something else, or not files at all, at a start of the plugin.

Each concerns its own claim: the plugin starts, the other claims are prepared and unprepared, and the claim whose file
it was is brought back, or prepared anew when kubelet asks. Without FAULTS_EVERY=1 half of the damages are done to files
of claims, and the other half to those of none.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient
from tests.support.damage import DAMAGES
from tests.support.plugin import NOTHING, Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

from .share import share

WHOLE = "gpu-0"


def _spec(plugin: Plugin, uid: str) -> Path:
    return plugin.cdi / f"k8s.gpu.nvidia.com-claim_{uid}.json"


OF_CLAIMS: dict[str, tuple[str, Callable[[Plugin, str], Path]]] = {
    "record": ("gpu-4-mig-1g10gb-19-0", lambda plugin, uid: plugin.records / f"{uid}.json"),
    "half-written record": ("gpu-1", lambda plugin, uid: plugin.records / f"{uid}.new"),
    "damaged record": ("gpu-2", lambda plugin, uid: plugin.records / f"{uid}.damaged"),
    "metadata": ("gpu-5-mig-1g10gb-19-0", lambda plugin, uid: plugin.state / "metadata" / f"{uid}_r0.json"),
    "half-written metadata": ("gpu-5-mig-1g10gb-19-1", lambda plugin, uid: plugin.state / "metadata" / f"{uid}_r0.new"),
    "spec": ("gpu-3", _spec),
    "half-written spec": (
        "gpu-5-mig-1g10gb-19-2",
        lambda plugin, uid: plugin.cdi / f".{_spec(plugin, uid).name}.0123456789abcdef.tmp",
    ),
    "mark": ("gpu-6-mig-1g10gb-19-0", lambda plugin, _: _mark(plugin, 6)),
}
"""The device of a claim, and its file that is damaged."""

OF_THE_NODE: dict[str, Callable[[Plugin], Path]] = {
    "boot id": lambda plugin: plugin.state / "boot-id",
    "half-written boot id": lambda plugin: plugin.state / "boot-id.new",
    "locks": lambda plugin: plugin.state / "locks",
    "instance lock": lambda plugin: plugin.state / "lock",
    "lock of all instances": lambda plugin: plugin.state / "instances.lock",
    "common spec": lambda plugin: plugin.cdi / "k8s.gpu.nvidia.com-base.json",
    "service socket": lambda plugin: plugin.service,
    "registration socket": lambda plugin: plugin.registration,
    "folder of modes": lambda plugin: plugin.state / "mig-modes",
    "unknown record": lambda plugin: plugin.records / "0c7c1f0e.json",
    "record of no claim": lambda plugin: plugin.records / "not a uid!.json",
    "unknown damaged record": lambda plugin: plugin.records / "not a uid!.damaged",
    "unknown mark": lambda plugin: plugin.state / "mig" / "junk",
    "unknown metadata": lambda plugin: plugin.state / "metadata" / "0c7c1f0f_r0.json",
    "unknown spec": lambda plugin: _spec(plugin, "0c7c1f10"),
}
"""Files that belong to no claim."""


def _mark(plugin: Plugin, gpu: int) -> Path:
    nvml = plugin.node.nvml()
    nvml.initialize()
    (found,) = (plugin.state / "mig").glob(f"{nvml.uuid(nvml.device_by_index(gpu))}_*")
    return found


@pytest.fixture
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    with plugin_on(kubeconfig, "--device-metadata") as one:
        yield one.start()


def require_clean(plugin: Plugin) -> None:
    """Nothing of any claim is left but the damaged records, which are kept for whoever wants to see them."""

    def left() -> dict[str, list[str]]:
        found = {**plugin.left(), "metadata": [path.name for path in (plugin.state / "metadata").iterdir()]}
        found["records"] = [name for name in found["records"] if not name.endswith(".damaged")]
        return {kind: [name for name in names if not name.endswith(".aside")] for kind, names in found.items()}

    # The sweep after the start may still be at work on files of no claim.
    wait_for(lambda: left() == {**NOTHING, "metadata": []}, f"{left()} to go")


@pytest.mark.parametrize("damage", share(list(DAMAGES), 0, 2))
def test_the_file_of_a_claim_concerns_that_claim_only(plugin: Plugin, client: ApiClient, damage: str) -> None:
    good, new = stored_claim(client, WHOLE), stored_claim(client, "gpu-7-mig-1g10gb-19-0")
    bad: dict[str, Any] = {name: stored_claim(client, device) for name, (device, _) in OF_CLAIMS.items()}
    before = plugin.prepare(good, *bad.values())
    assert [one.error for one in before.values() if one.error] == []
    files = {name: path(plugin, bad[name].uid) for name, (_, path) in OF_CLAIMS.items()}
    plugin.kill()
    for file in files.values():
        DAMAGES[damage](file)
    plugin.start()
    assert plugin.prepare(good)[good.uid] == before[good.uid]
    assert plugin.prepare(new)[new.uid].error == ""
    assert plugin.unprepare(good, new) == {good.uid: "", new.uid: ""}
    for name, one in bad.items():
        wait_for(lambda one=one: plugin.prepare(one)[one.uid] == before[one.uid], f"the claim of the {name}")  # type: ignore[misc]
        assert plugin.spec_devices(one.uid)
    assert plugin.unprepare(*bad.values()) == {one.uid: "" for one in bad.values()}
    require_clean(plugin)
    assert f"record {files['record']} cannot be read and is set aside" in plugin.log
    assert f"metadata file {files['metadata']} cannot be read and is removed" in plugin.log


@pytest.mark.parametrize("damage", share(list(DAMAGES), 1, 2))
def test_a_file_of_no_claim_concerns_none(plugin: Plugin, client: ApiClient, damage: str) -> None:
    claims = [stored_claim(client, WHOLE), stored_claim(client, "gpu-4-mig-1g10gb-19-0")]
    before = plugin.prepare(*claims)
    plugin.kill()
    for path in OF_THE_NODE.values():
        DAMAGES[damage](path(plugin))
    plugin.start()
    for one in claims:
        assert plugin.prepare(one)[one.uid] == before[one.uid]
    new = stored_claim(client, "gpu-5-mig-1g10gb-19-0")
    assert plugin.prepare(new)[new.uid].error == ""
    assert plugin.unprepare(new, *claims) == {one.uid: "" for one in (new, *claims)}
    assert plugin.get_info().endpoint == str(plugin.service)
    assert plugin.instances() == []
    assert plugin.terminate() == 0
    plugin.start()
