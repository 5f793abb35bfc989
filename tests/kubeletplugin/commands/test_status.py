# SPDX-License-Identifier: Apache-2.0
"""`dra-kubeletplugin status`: what it says of a node, with and without plugin and driver."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.picture import NodePicture, drawn
from dra_driver.kube.api import ApiClient
from kubeletplugin.commands.status import GpuState, gpu_picture
from tests.support.plugin import Plugin, plugin_on, stored_claim

pytestmark = pytest.mark.node

FOUR = ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-2g20gb-14-2", "gpu-4-mig-3g40gb-9-4"]


@pytest.fixture(scope="module")
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    with plugin_on(kubeconfig) as one:
        yield one.start()


@pytest.fixture
def claims(plugin: Plugin, client: ApiClient) -> Iterator[list[Any]]:
    """Prepared: a whole GPU, and a GPU in four slices."""
    made = [stored_claim(client, "gpu-0"), stored_claim(client, *FOUR)]
    plugin.prepare(*made)
    yield made
    if plugin.process is None:
        plugin.start()
    plugin.unprepare(*made)


def status(plugin: Plugin) -> Any:
    done = plugin.command("status", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def by_uid(document: Any) -> dict[str, Any]:
    return {one["uid"]: one for one in document["claims"]}


def test_the_claims_their_steps_and_devices(plugin: Plugin, claims: list[Any]) -> None:
    found = by_uid(status(plugin))
    whole, mig = (found[claim.uid] for claim in claims)
    assert (whole["namespace"], whole["name"], whole["state"]) == ("default", claims[0].name, "Prepared")
    (gpu,) = whole["devices"]
    assert (gpu["name"], gpu["request"], gpu["type"]) == ("gpu-0", "r0", "gpu")
    assert gpu["uuid"].startswith("GPU-")
    assert [one["name"] for one in mig["devices"]] == FOUR
    assert [one["profile"] for one in mig["devices"]] == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    assert all(one["uuid"].startswith("MIG-") for one in mig["devices"])
    assert [one["done"] for one in mig["steps"]] == [True] * 5  # the mode, and an instance each


def test_status_shows_the_claims_of_each_gpu(plugin: Plugin, claims: list[Any]) -> None:
    whole, mig = claims
    gpus = {one["minor"]: one for one in status(plugin)["gpus"]}
    assert sorted(gpus) == list(range(8))
    assert (gpus[0]["wholeFor"], gpus[0]["migMode"]) == ([whole.uid], False)
    assert [(one["claim"], one["start"], one["size"]) for one in gpus[4]["slicesFor"]] == [
        (mig.uid, 0, 1),
        (mig.uid, 1, 1),
        (mig.uid, 2, 2),
        (mig.uid, 4, 4),
    ]
    assert (gpus[4]["memorySlices"], gpus[4]["migMode"]) == (8, True)
    assert (gpus[1]["wholeFor"], gpus[1]["slicesFor"]) == ([], [])


def test_status_shows_running_plugins(plugin: Plugin) -> None:
    found = status(plugin)
    assert found["running"] == [str(plugin.registration), str(plugin.service)]
    assert found["driver"] == {"answers": True, "version": "570.158.01", "hangs": []}


def test_status_is_a_table_and_a_picture(plugin: Plugin, claims: list[Any]) -> None:
    done = plugin.command("status")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"plugin running: {plugin.registration.name}, {plugin.service.name}"
    for claim in claims:
        assert f"default/{claim.name}" in done.stdout
        assert claim.uid in done.stdout
    whole, mig = (f"default/{claim.name}" for claim in claims)
    assert [line.split()[0] for line in lines if line.split()[1:2] == [mig]] == ["a", "a"]  # in the table, and the key
    assert any(line.split() == ["gpu-0", "whole", whole] for line in lines)
    assert any(line.startswith("gpu-1 to gpu-3") and line.endswith("whole  free") for line in lines)
    (divided,) = (line for line in lines if line.startswith("gpu-4") and "|" in line)
    assert divided.count(" a") == 4
    assert "MIG device 3g.40gb at 4:4: done" in done.stdout


def test_without_a_plugin_and_a_driver_the_records_still_tell(plugin: Plugin, claims: list[Any]) -> None:
    plugin.terminate()
    plugin.node.unload_driver()
    try:
        found = status(plugin)
    finally:
        plugin.node.load_driver()
    assert found["running"] == []
    assert found["driver"]["answers"] is False
    assert "DRIVER_NOT_LOADED" in found["driver"]["problem"]
    assert {one["done"] for claim in found["claims"] for one in claim["steps"]} == {None}
    assert [one["minor"] for one in found["gpus"]] == [0, 4]
    assert len(found["gpus"][1]["slicesFor"]) == 4


def test_status_shows_instances_that_a_reset_destroyed(plugin: Plugin, claims: list[Any]) -> None:
    plugin.terminate()
    plugin.node.reset_gpu(4)
    _, mig = claims
    steps = by_uid(status(plugin))[mig.uid]["steps"]
    assert [one["done"] for one in steps] == [True, False, False, False, False]


def test_records_that_cannot_be_read_are_named_and_left(plugin: Plugin) -> None:
    plugin.terminate()  # it would set them aside as soon as it looks
    bad = {"0c7c1f0e.json": "{", "0c7c1f0f.json": '{"version": 99}', "0c7c1f10.damaged": "{"}
    for name, text in bad.items():
        (plugin.records / name).write_text(text)
    found = status(plugin)["unreadable"]
    assert set(found) == set(bad)
    assert "version 99" in found["0c7c1f0f.json"]
    assert {path.name for path in plugin.records.iterdir()} >= set(bad)
    for name in bad:
        (plugin.records / name).unlink()
    plugin.start()


def test_status_of_an_empty_node_says_so(kubeconfig: Path) -> None:
    with plugin_on(kubeconfig) as plugin:
        done = plugin.command("status")
        assert done.returncode == 0
        assert "plugin running: no" in done.stdout
        assert "no claims" in done.stdout
        assert not plugin.state.exists()


def lines_of(state: GpuState) -> list[str]:
    picture = NodePicture("", (gpu_picture(state, {"uid-a": "ns/a", "uid-b": "ns/b"}),))
    return [line.plain for line in drawn(picture, 100, every=True)]


SLOTS = (("uid-a", "1g.10gb", Placement(0, 1)), ("uid-b", "3g.40gb", Placement(4, 4)))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (GpuState("GPU-0", 0, 4, True), ["gpu-0  |     |     |     |     |"]),
        (GpuState("GPU-0", 0, 4, False), ["gpu-0  whole  free"]),
        (GpuState("GPU-0", 0, 4, False, whole=("uid-a",)), ["gpu-0  whole  ns/a"]),
        (
            GpuState("GPU-0", 0, 8, True, slots=SLOTS),
            ["gpu-0  |1g.10gb a|         |         |         |               3g.40gb b               |"],
        ),
        (
            GpuState("GPU-0", 0, 4, True, others=(Placement(2, 2),), slots=SLOTS[:1]),
            ["gpu-0  |1g.10gb a|         |      no claim     |"],
        ),
    ],
)
def test_the_picture_of_a_gpu(state: GpuState, expected: list[str]) -> None:
    assert lines_of(state)[: len(expected)] == expected


def test_instances_of_two_claims_in_one_slice_are_drawn_together() -> None:
    both = (("uid-a", "1g.10gb", Placement(0, 1)), ("uid-b", "1g.10gb", Placement(0, 1)))
    drawing, legend = lines_of(GpuState("GPU-0", 0, 2, True, slots=both))
    assert "1g.10gb + 1g.10gb a,b" in drawing
    assert legend == "a ns/a   b ns/b"


def test_a_flag_of_the_plugin_is_not_passed_over_before_a_command(plugin: Plugin) -> None:
    done = plugin.command("--node-name=node-a", "status")
    assert done.returncode == 2
    assert "flags of status stand after it" in done.stderr
