# SPDX-License-Identifier: Apache-2.0
"""The flags that tell a process where its GPUs are."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dra_driver.gpu.fabric_library import FabricLibrary
from dra_driver.gpu.nvml_library import NvmlLibrary
from dra_driver.gpu.options import Hardware, hardware_options
from dra_driver.gpu.simulated import SimulatedNvml
from dra_driver.process.command import InputError


def run(*arguments: str | Path, **environment: str | Path) -> Hardware:
    """The hardware that a command with these flags is given."""
    given: list[Hardware] = []

    @click.command()
    @click.option("--node-name", default="")
    @hardware_options
    def command(node_name: str, hardware: Hardware) -> None:
        given.append(hardware)

    CliRunner().invoke(
        command,
        [str(argument) for argument in arguments],
        env={name: str(value) for name, value in environment.items()},
        catch_exceptions=False,
        standalone_mode=False,
    )
    (hardware,) = given
    return hardware


def uuids(hardware: Hardware) -> list[str]:
    """The UUIDs of the node's GPUs."""
    nvml = hardware.nvml()
    nvml.initialize()
    return [nvml.uuid(nvml.device_by_index(index)) for index in range(nvml.device_count())]


def test_a_simulated_node_is_made_below_its_root(tmp_path: Path) -> None:
    hardware = run("--simulated-node", "a30x4", "--simulated-root", tmp_path, "--node-name", "node-a")
    root = tmp_path / "driver"
    assert isinstance(hardware.nvml(), SimulatedNvml)
    assert (hardware.driver_root, hardware.host_driver_root, hardware.dev_root) == (root, root, root)
    assert (hardware.proc_root, hardware.sys_root) == (root / "proc", root / "sys")
    assert (hardware.dev_root / "dev/nvidia3").exists()
    assert len(uuids(hardware)) == 4


def test_the_environment_says_the_same(tmp_path: Path) -> None:
    flags = run("--simulated-node", "a30x4", "--simulated-root", tmp_path, "--node-name", "node-a")
    environment = run("--node-name", "node-a", SIMULATED_NODE="a30x4", SIMULATED_ROOT=tmp_path)
    assert uuids(environment) == uuids(flags)
    assert environment.driver_root == flags.driver_root


def test_a_second_process_needs_the_root_only(tmp_path: Path) -> None:
    first = run("--simulated-node", "a30x4", "--simulated-root", tmp_path)
    assert uuids(run("--simulated-root", tmp_path)) == uuids(first)


def test_nodes_of_different_names_have_different_gpus(tmp_path: Path) -> None:
    nodes = [
        run("--simulated-node", "a30x4", "--simulated-root", tmp_path / name, "--node-name", name)
        for name in ("a", "b")
    ]
    assert not set(uuids(nodes[0])).intersection(uuids(nodes[1]))


def test_a_relative_root_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--simulated-node", "a30x4", "--simulated-root", "sim").driver_root == tmp_path / "sim/driver"


def test_a_simulated_node_needs_a_root() -> None:
    with pytest.raises(InputError, match="--simulated-node needs --simulated-root"):
        run("--simulated-node", "a30x4")


def test_an_unknown_node_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no simulated node 'h100'"):
        run("--simulated-node", "h100", "--simulated-root", tmp_path)


def test_a_root_with_another_node_is_an_input_error(tmp_path: Path) -> None:
    run("--simulated-node", "a30x4", "--simulated-root", tmp_path)
    with pytest.raises(InputError, match="holds another simulated node"):
        run("--simulated-node", "h100x8", "--simulated-root", tmp_path)


def test_without_simulation_the_installed_driver_is_used(tmp_path: Path) -> None:
    hardware = run("--nvidia-driver-root", tmp_path, "--container-driver-root", tmp_path / "missing")
    assert isinstance(hardware.nvml(), NvmlLibrary)
    assert (hardware.driver_root, hardware.host_driver_root) == (tmp_path, tmp_path)
    assert (hardware.dev_root, hardware.proc_root, hardware.sys_root) == (Path("/"), Path("/proc"), Path("/sys"))


def test_in_a_container_the_drivers_files_are_where_they_are_mounted(tmp_path: Path) -> None:
    mounted = tmp_path / "driver-root"
    (mounted / "dev").mkdir(parents=True)
    (mounted / "dev/nvidiactl").touch()
    hardware = run(NVIDIA_DRIVER_ROOT="/run/nvidia/driver", DRIVER_ROOT_CTR_PATH=mounted)
    assert (hardware.driver_root, hardware.host_driver_root) == (mounted, Path("/run/nvidia/driver"))
    assert hardware.dev_root == mounted


def test_programs_of_a_driver_root_of_its_own_are_given_its_nvml_library(tmp_path: Path) -> None:
    hardware = run("--container-driver-root", tmp_path)
    assert hardware.nvml_library() is None
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert hardware.nvml_library() == library


def test_programs_of_the_hosts_own_root_find_the_library_themselves(tmp_path: Path) -> None:
    assert run("--container-driver-root", tmp_path / "missing").nvml_library() is None


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, Path("run/nvidia-fabricmanager/socket")),
        ({"NVIDIA_FABRICMANAGER_UNIX_SOCKET": "/driver-root/other"}, Path("/driver-root/other")),
        ({"NVIDIA_FABRICMANAGER_ADDRESS": "10.0.0.1:7777"}, "10.0.0.1:7777"),
        ({"NVIDIA_FABRICMANAGER_ADDRESS": ""}, "127.0.0.1"),
    ],
)
def test_fabric_manager_is_where_the_variables_of_the_official_driver_say(
    tmp_path: Path, given: dict[str, str], address: Path | str
) -> None:
    manager = run("--container-driver-root", tmp_path, **given).fabric_manager
    assert isinstance(manager, FabricLibrary)
    assert manager.address == (tmp_path / address if isinstance(address, Path) else address)


def test_a_simulated_node_has_a_fabric_manager_if_it_has_partitions(tmp_path: Path) -> None:
    partitions = Path(__file__).parents[1] / "support/nvswitch.yaml"
    for name, there in (("h100x8", False), (partitions, True)):
        hardware = run("--simulated-node", name, "--simulated-root", tmp_path / str(there), "--node-name", "node-a")
        assert (hardware.fabric_manager is not None) is there
