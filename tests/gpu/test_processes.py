# SPDX-License-Identifier: Apache-2.0
"""Simulated hardware outlives the processes that use it, and stays one hardware however many they are."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Placement
from tests.support.nodes import make_node

pytestmark = pytest.mark.node

REPOSITORY = Path(__file__).parents[2]

# Makes a MIG instance, says which, and waits to be killed.
MAKES_ONE = """
import sys
from pathlib import Path
from dra_driver.gpu.simulated import SimulatedNode
from tests.gpu.calls import make_instance

nvml = SimulatedNode(Path(sys.argv[1])).nvml()
nvml.initialize()
_, device = make_instance(nvml, nvml.device_by_index(0), 1, 2)
print(nvml.uuid(device), flush=True)
input()
"""

# On a signal to start, tries to make 1g.10gb at every place of one GPU; says where it succeeded.
MAKES_MANY = """
import sys
from pathlib import Path
from dra_driver.gpu.nvml import NvmlError, Placement, Return
from dra_driver.gpu.simulated import SimulatedNode

nvml = SimulatedNode(Path(sys.argv[1])).nvml()
nvml.initialize()
gpu = nvml.device_by_index(0)
print("ready", flush=True)
input()
for start in range(7):
    try:
        made = nvml.create_gpu_instance(gpu, 19, Placement(start, 1))
        print(start, nvml.gpu_instance_info(made).id, flush=True)
    except NvmlError as error:
        assert error.code is Return.INSUFFICIENT_RESOURCES, error
"""

# Makes and destroys instances of a GPU of its own, over and over.
MAKES_AND_DESTROYS = """
import sys
from pathlib import Path
from dra_driver.gpu.simulated import SimulatedNode
from tests.gpu.calls import destroy_instance, make_instance

nvml = SimulatedNode(Path(sys.argv[1])).nvml()
nvml.initialize()
gpu = nvml.device_by_index(int(sys.argv[2]))
for _ in range(8):
    made = [make_instance(nvml, gpu, constant, start)[0] for constant, start in ((0, 0), (1, 2), (2, 4))]
    for instance in made:
        destroy_instance(nvml, instance)
"""


def run(program: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own that runs this."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


def test_instance_of_a_killed_process_is_found_by_the_next_process(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8-mig")
    with run(MAKES_ONE, tmp_path) as maker:
        assert maker.stdout is not None
        uuid = maker.stdout.readline().strip()
        maker.send_signal(signal.SIGKILL)
    assert maker.returncode == -signal.SIGKILL
    nvml = make_node(tmp_path, "h100x8-mig").nvml
    (device,) = nvml.mig_devices(nvml.device_by_index(0))
    assert nvml.uuid(device) == uuid
    assert node.nvml.device_by_uuid(uuid) == device
    (instance,) = nvml.gpu_instances(nvml.device_by_index(0), 14)
    assert nvml.gpu_instance_info(instance).placement == Placement(2, 2)


def test_processes_never_get_one_placement_twice(tmp_path: Path) -> None:
    nvml = make_node(tmp_path, "h100x8-mig").nvml
    makers = [run(MAKES_MANY, tmp_path) for _ in range(3)]
    for maker in makers:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "ready\n"
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("\n")
        maker.stdin.flush()
    made = [line.split() for maker in makers for line in maker.communicate()[0].splitlines()]
    assert [maker.returncode for maker in makers] == [0, 0, 0]
    assert sorted(int(start) for start, _ in made) == list(range(7))
    assert sorted(int(number) for _, number in made) == list(range(7, 14))
    assert len(nvml.gpu_instances(nvml.device_by_index(0), 19)) == 7


def test_processes_on_different_gpus_do_not_disturb_each_other(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8-mig")
    before = sorted(node.node.driver_root.rglob("*"))
    workers = [run(MAKES_AND_DESTROYS, tmp_path, index) for index in range(3)]
    for worker in workers:
        worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    gpus = [node.nvml.device_by_index(index) for index in range(8)]
    assert [node.nvml.mig_devices(gpu) for gpu in gpus] == [()] * 8
    folders = [path for path in node.node.driver_root.rglob("*") if path not in before]
    assert {path.name for path in folders} <= {"gpu0", "gpu1", "gpu2", "mig"}
