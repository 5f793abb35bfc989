# SPDX-License-Identifier: Apache-2.0
"""`dra-kubeletplugin cleanup`: everything that the driver made goes, and nothing else."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.profiles import whole_compute_profile
from dra_driver.kube.api import ApiClient
from dra_driver.process.mps import processes_of
from tests.support.claims import mps
from tests.support.mps import connect, mps_of
from tests.support.plugin import NOTHING, Plugin, plugin_on, stored_claim

pytestmark = pytest.mark.node

FOUR = ["gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-19-1", "gpu-4-mig-2g20gb-14-2", "gpu-4-mig-3g40gb-9-4"]


@pytest.fixture
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    """A node whose plugin ran and had nothing to do."""
    with plugin_on(kubeconfig) as one:
        yield one.start()


@pytest.fixture
def claims(plugin: Plugin, client: ApiClient) -> list[Any]:
    """Two that are prepared."""
    made = [stored_claim(client, "gpu-0"), stored_claim(client, *FOUR)]
    assert [one.error for one in plugin.prepare(*made).values()] == ["", ""]
    return made


def everything(plugin: Plugin) -> dict[str, list[str]]:
    """All that the driver has on the node."""
    places = (plugin.state, plugin.cdi, plugin.registration.parent)
    files = [str(path) for place in places if place.is_dir() for path in place.rglob("*")]
    return {"instances": plugin.instances(), "files": sorted(files)}


CLEAN: dict[str, list[str]] = {"instances": [], "files": []}


def test_after_a_plugin_nothing_is_left(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, *FOUR)
    plugin.prepare(claim)
    plugin.unprepare(claim)
    plugin.terminate()
    assert everything(plugin)["files"]
    done = plugin.command("cleanup")
    assert (done.returncode, done.stderr) == (0, "")
    assert everything(plugin) == CLEAN
    assert not plugin.state.exists()


@pytest.mark.parametrize("runs", ["dra-mps runs", "dra-mps was killed"])
def test_mps_daemons_and_their_shared_memory_go_also_without_dra_mps(
    plugin: Plugin, client: ApiClient, runs: str
) -> None:
    foreign = plugin.folder / "shm/somebody-elses"
    foreign.mkdir(parents=True)
    plugin.terminate()
    plugin.shared_memory = foreign.parent
    plugin.start()
    with mps_of(plugin.state, plugin.node, plugin.folder / "mps.log", foreign.parent) as supervisor:
        claim = stored_claim(client, "gpu-0", sharing=mps())
        assert plugin.prepare(claim)[claim.uid].error == ""
        connect(next(plugin.state.glob("mps/s*/pipe")))
        processes = supervisor.processes()
        assert len(processes) == 2
        assert len(list(foreign.parent.iterdir())) == 2
        plugin.terminate()
        if runs == "dra-mps was killed":
            supervisor.kill()
        planned = plugin.command("cleanup", "--force", "--dry-run").stdout
        assert all(f"would remove process {pid} of an MPS daemon" in planned for pid in processes)
        done = plugin.command("cleanup", "--force")
        assert done.returncode == 0, done.stderr
        assert (processes_of(plugin.state), list(foreign.parent.iterdir())) == ([], [foreign])
        assert not plugin.state.exists()


def test_cleanup_can_be_repeated(plugin: Plugin) -> None:
    plugin.terminate()
    for _ in range(2):
        assert plugin.command("cleanup").returncode == 0
    assert everything(plugin) == CLEAN
    assert plugin.start().left() == NOTHING


def test_cleanup_is_refused_while_a_plugin_runs(plugin: Plugin) -> None:
    before = everything(plugin)
    for force in ([], ["--force"]):
        done = plugin.command("cleanup", *force)
        assert done.returncode == 1
        assert "a dra-kubeletplugin runs on this node" in done.stderr
        assert "delete its DaemonSet first" in done.stderr
    assert everything(plugin) == before


def test_claims_that_are_prepared_are_taken_away_only_by_force(plugin: Plugin, claims: list[Any]) -> None:
    plugin.terminate()
    before = everything(plugin)
    done = plugin.command("cleanup")
    assert done.returncode == 1
    assert all(f"default/{claim.name}" in done.stderr for claim in claims)
    assert "--force" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert everything(plugin) == before

    planned = plugin.command("cleanup", "--force", "--dry-run")
    assert planned.returncode == 0
    assert everything(plugin) == before
    for claim in claims:
        assert f"would remove claim default/{claim.name} (UID {claim.uid}) from this node" in planned.stdout
        assert any(path.name in planned.stdout for path in plugin.cdi.glob(f"*{claim.uid}*"))
    assert planned.stdout.count("would remove the MIG instance at") == 4
    assert str(plugin.state) in planned.stdout

    forced = plugin.command("cleanup", "--force")
    assert forced.returncode == 0
    assert all(f"unprepared claim default/{claim.name}" in forced.stdout for claim in claims)
    assert everything(plugin) == CLEAN


def test_a_killed_plugins_sockets_and_broken_off_claims_go(plugin: Plugin, client: ApiClient) -> None:
    claim = stored_claim(client, *FOUR)
    plugin.hold("nvmlGpuInstanceCreateComputeInstance", 2)
    plugin.begin("Prepare", claim)
    plugin.wait_held()
    plugin.kill()
    assert plugin.registration.exists()
    assert plugin.instances()
    assert plugin.command("cleanup").returncode == 0
    assert everything(plugin) == CLEAN


def test_instances_and_specs_of_an_administrator_stay(plugin: Plugin) -> None:
    nvml = plugin.node.nvml()
    nvml.initialize()
    gpu = nvml.device_by_index(5)
    placement = nvml.gpu_instance_placements(gpu, 19)[3]
    instance = nvml.create_gpu_instance(gpu, 19, placement)
    nvml.create_compute_instance(instance, whole_compute_profile(nvml, instance, 1))
    foreign = plugin.cdi / "other.example.com-gpu.json"
    foreign.write_text("{}")
    strange = plugin.registration.parent / "other.example.com-reg.sock"
    strange.touch()
    plugin.terminate()
    assert plugin.command("cleanup").returncode == 0
    assert everything(plugin) == {"instances": ["5/3:1"], "files": sorted(map(str, (foreign, strange)))}


def test_specs_of_another_driver_with_names_like_ours_are_named_and_stay(plugin: Plugin) -> None:
    plugin.terminate()
    foreign = plugin.cdi / "k8s.gpu.nvidia.com-claim_0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e00.yaml"
    foreign.write_text("cdiVersion: 0.5.0\n")
    for flags in (["--dry-run"], []):
        done = plugin.command("cleanup", *flags)
        assert done.returncode == 0
        assert f"left {foreign}, which belongs to NVIDIA's own DRA driver" in done.stdout.splitlines()
        assert foreign.exists()


def test_a_folder_that_is_a_mount_point_is_emptied_and_stays(plugin: Plugin, claims: list[Any]) -> None:
    """With files in it below a folder that cannot be written, and empty below a folder that can be written."""
    plugin.terminate()
    for remount, why in (
        ('mount -o remount,bind,ro "$1/.."', "Read-only file system"),
        ("true", "Device or resource busy"),
    ):
        in_a_pod = f'mount --bind "$1/.." "$1/.."; mount --bind "$1" "$1"; {remount}; shift; exec "$@"'
        container = ("unshare", "--mount", "sh", "-euc", in_a_pod, "sh", str(plugin.state))
        if subprocess.run([*container, "true"], capture_output=True, check=False).returncode != 0:
            pytest.skip("this process may not mount")
        done = plugin.command("cleanup", "--force", within=container)
        assert done.returncode == 0, done.stderr
        emptied = f"emptied {plugin.state}, and kept the folder, because it is a mount point here ({why})"
        assert done.stdout.splitlines()[-1] == emptied
        assert everything(plugin) == CLEAN
    assert plugin.state.is_dir()


def test_failed_undo_is_reported_and_kept_for_the_next_run(plugin: Plugin, claims: list[Any]) -> None:
    whole, mig = claims
    plugin.unprepare(whole)
    uuid = json.loads((plugin.records / f"{mig.uid}.json").read_text())["found"][FOUR[3]]["uuid"]
    plugin.node.occupy(uuid, os.getpid())
    assert "IN_USE" in plugin.unprepare(mig)[mig.uid]
    plugin.terminate()
    done = plugin.command("cleanup")
    assert done.returncode == 1
    assert f"claim default/{mig.name}: " in done.stderr
    assert str(os.getpid()) in done.stderr
    assert (plugin.records / f"{mig.uid}.json").exists()
    assert "4/4:4" in plugin.instances()
    plugin.node.vacate(os.getpid())
    assert plugin.command("cleanup").returncode == 0
    assert everything(plugin) == CLEAN


def test_forced_cleanup_names_changes_that_cannot_be_undone(plugin: Plugin, claims: list[Any]) -> None:
    _, mig = claims
    uuid = json.loads((plugin.records / f"{mig.uid}.json").read_text())["found"][FOUR[3]]["uuid"]
    plugin.node.occupy(uuid, os.getpid())
    plugin.terminate()
    done = plugin.command("cleanup", "--force")
    assert done.returncode == 0
    assert "left unchanged: the MIG instance at 4:4 of GPU" in done.stdout
    assert everything(plugin)["files"] == []
    assert "4/4:4" in plugin.instances()


def test_without_a_driver_records_of_instances_are_kept(plugin: Plugin, claims: list[Any]) -> None:
    plugin.unprepare(claims[0])
    plugin.node.unload_driver()
    plugin.unprepare(claims[1])  # all but its instances, which may come back with the driver
    plugin.terminate()
    done = plugin.command("cleanup")
    assert done.returncode == 1
    assert "the MIG instance at 4:4" in done.stderr
    assert (plugin.records / f"{claims[1].uid}.json").exists()
    plugin.node.load_driver()
    assert plugin.command("cleanup").returncode == 0
    assert everything(plugin) == CLEAN


def test_records_that_cannot_be_read_need_force(plugin: Plugin) -> None:
    plugin.terminate()
    names = ("0c7c1f0e.json", "1d8d2a1f.damaged")
    for name in names:
        (plugin.records / name).write_text("{")
    done = plugin.command("cleanup")
    assert done.returncode == 1
    assert all(name in done.stderr for name in names)
    assert plugin.command("cleanup", "--force").returncode == 0
    assert everything(plugin) == CLEAN
