# SPDX-License-Identifier: Apache-2.0
"""Our specs in a real container: podman resolves the CDI devices, an OCI runtime makes the container.

Everything happens below a private, empty /run (so a private /var/run/cdi) in a mount namespace of its own. That takes
root and podman; without them the tests are skipped. Podman 4.3 knows cdiVersion up to 0.5.0.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import (
    ADDITIONAL_DEVICES,
    BASE_DEVICE,
    BASE_KIND,
    CLAIM_KIND,
    ContainerEdits,
    DriverRoot,
    HookTool,
    SpecDirectory,
    base_spec,
    claim_device,
    claim_spec,
    common_edits,
    find_additional,
    gpu_edits,
    mig_edits,
)
from tests.support.nodes import driver_root_of

from .trees import MAJORS, VERSION, file, kernel, libraries, link, program

pytestmark = pytest.mark.node

UID = "9f53c0e5-9f54-647d-a53c-73174df363ba"

# the limits are low because a container may not raise those of its maker
SCRIPT = """
mount -t tmpfs tmpfs /run
cp -r "$1" /run/cdi
shift
exec podman --root /run/p/root --runroot /run/p/run --tmpdir /run/p/tmp --cgroup-manager cgroupfs \
    --events-backend none --storage-driver vfs \
    run --rm --cgroups no-conmon --network host --ulimit nofile=512:512 --ulimit nproc=512:512 "$@"
"""


def podman(specs: Path) -> list[str]:
    """The command that runs a container with the CDI specs in a folder, up to its options."""
    return ["unshare", "--mount", "sh", "-euc", SCRIPT, "sh", str(specs)]


def run(specs: Path, devices: Sequence[str], command: str, *more: str) -> subprocess.CompletedProcess[str]:
    """`command` of a shell, in a container that has this machine's root file system and asks for `devices`; `more` are
    options of podman.
    """
    options = [*(f"--device={device}" for device in devices), *more]
    return subprocess.run(
        [*podman(specs), *options, "--rootfs", "/:O", "sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module", autouse=True)
def _podman_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    missing = [name for name in ("podman", "unshare") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not on PATH")
    if os.geteuid() != 0:
        pytest.skip("making containers in a mount namespace of their own takes root")
    probe = run(tmp_path_factory.mktemp("empty"), [], "true")
    if probe.returncode != 0:
        pytest.skip(f"podman cannot run a container on this machine: {probe.stderr.strip()}")


@pytest.fixture
def root(tmp_path: Path) -> DriverRoot:
    """A node laid out as RHEL does it, with a real shared library for libcuda; its device nodes are not made yet."""
    tree = tmp_path / "driver"
    libraries(tree, "/usr/lib64")
    real = next(path for pattern in ("lib/*/libm.so.6", "lib64/libm.so.6") for path in Path("/").glob(pattern))
    shutil.copy(real, tree / f"usr/lib64/libcuda.so.{VERSION}")
    program(tree, "/usr/bin/nvidia-smi", "#!/bin/sh\necho simulated nvidia-smi\n")
    kernel(tree, MAJORS, {"gpu0/mig/gi1/access": 12, "gpu0/mig/gi1/ci0/access": 13})
    return driver_root_of(tree, str(tree))


@pytest.fixture
def specs(tmp_path: Path, root: DriverRoot) -> Path:
    """A CDI directory with the node's spec, without hooks, and a claim's: a whole GPU and a MIG device."""
    directory = tmp_path / "cdi"
    SpecDirectory(directory, BASE_KIND).write(base_spec(common_edits(root, VERSION, None).edits))
    devices = {"gpu-3": gpu_edits(root, 3).edits, "gpu-0-mig-1g10gb-0-0": mig_edits(root, 0, 1, 0).edits}
    SpecDirectory(directory, CLAIM_KIND).write(claim_spec(UID, devices), UID)
    return directory


MIG = [claim_device(UID, "gpu-0-mig-1g10gb-0-0"), BASE_DEVICE]


def test_a_mig_devices_container_has_its_nodes_and_no_other_gpu(specs: Path) -> None:
    done = run(specs, MIG, "stat --format '%n %F %Hr:%Lr %a' /dev/nvidia* /dev/nvidia-caps/*")
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if "directory" not in line] == [
        "/dev/nvidia-uvm character special file 510:0 666",
        "/dev/nvidia-uvm-tools character special file 510:1 666",
        "/dev/nvidia0 character special file 195:0 666",
        "/dev/nvidiactl character special file 195:255 666",
        "/dev/nvidia-caps/nvidia-cap12 character special file 235:12 444",
        "/dev/nvidia-caps/nvidia-cap13 character special file 235:13 444",
    ]


def test_both_devices_of_a_claim_can_be_asked_for_together(specs: Path) -> None:
    done = run(specs, [*MIG, claim_device(UID, "gpu-3")], "ls /dev/nvidia0 /dev/nvidia3")
    assert done.stdout.split() == ["/dev/nvidia0", "/dev/nvidia3"]


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", f"libcuda.so.{VERSION}"])
def test_without_hooks_the_loader_finds_libcuda_under_each_of_its_names(specs: Path, name: str) -> None:
    done = run(specs, MIG, f"LD_PRELOAD={name} cat /proc/self/maps")
    assert done.stderr == "", "the loader says so when it cannot preload"
    assert f"/{name}\n" in done.stdout


def test_programs_and_environment_are_there_and_the_driver_is_read_only(specs: Path) -> None:
    command = "nvidia-smi; echo $NVIDIA_VISIBLE_DEVICES; grep -F /usr/lib64/libcuda.so.1 /proc/self/mountinfo"
    smi, visible, mount = run(specs, MIG, command).stdout.splitlines()
    assert (smi, visible) == ("simulated nvidia-smi", "void")
    assert mount.split()[5].split(",")[:3] == ["ro", "nosuid", "nodev"]


def test_the_hooks_run_once_and_in_order_however_many_gpus_there_are(tmp_path: Path, root: DriverRoot) -> None:
    log = tmp_path / "hooks.log"
    hook = program(tmp_path, "/nvidia-cdi-hook", f'#!/bin/sh\necho "$1 $(grep -c bundle)" >>{log}\n')
    directory = tmp_path / "cdi"
    common = common_edits(root, VERSION, HookTool(str(hook))).edits
    gpus = {f"gpu-{minor}": gpu_edits(root, minor).edits for minor in range(8)}
    SpecDirectory(directory, BASE_KIND).write(base_spec(common))
    SpecDirectory(directory, CLAIM_KIND).write(claim_spec(UID, gpus), UID)
    # podman counts repeated names as often as they come, as CRI-O does
    devices = [name for gpu in gpus for name in (claim_device(UID, gpu), BASE_DEVICE)]
    done = run(directory, devices, "ls -d /dev/nvidia? && echo $NVIDIA_VISIBLE_DEVICES")
    assert done.stdout.split() == [*(f"/dev/nvidia{minor}" for minor in range(8)), "void"], done.stderr
    assert log.read_text().splitlines() == [
        "create-symlinks 1",
        "enable-cuda-compat 1",
        "update-ldcache 1",
        "disable-device-node-modification 1",
        "update-application-profile 1",
    ]


def test_additional_devices_come_with_each_device_and_are_there_once(tmp_path: Path, root: DriverRoot) -> None:
    for name in ("nvidia-fs0", "gdrdrv", "infiniband/uverbs0", "nvidia-nvswitchctl"):
        link(root.dev.path, f"/dev/{name}", "/dev/null")
    file(root.files.path, "/etc/cufile.json", "of the node\n")
    edits = sum((find_additional(root, name).edits for name in ADDITIONAL_DEVICES), start=ContainerEdits())
    directory = tmp_path / "cdi"
    SpecDirectory(directory, BASE_KIND).write(base_spec(common_edits(root, VERSION, None).edits))
    gpus = {f"gpu-{minor}": gpu_edits(root, minor).edits + edits for minor in range(2)}
    SpecDirectory(directory, CLAIM_KIND).write(claim_spec(UID, gpus), UID)
    nodes = "/dev/nvidia-fs0 /dev/gdrdrv /dev/infiniband/uverbs0 /dev/nvidia-nvswitchctl"
    command = f"echo written >/dev/gdrdrv; cat /etc/cufile.json; stat --format '%Hr:%Lr' {nodes}"
    done = run(directory, [*(claim_device(UID, gpu) for gpu in gpus), BASE_DEVICE], command)
    assert done.stdout.split("\n") == ["of the node", *["1:3"] * 4, ""], done.stderr


def test_a_device_of_a_removed_claim_cannot_be_asked_for(specs: Path) -> None:
    SpecDirectory(specs, CLAIM_KIND).remove(UID)
    done = run(specs, MIG, "true")
    assert done.returncode != 0
    assert UID in done.stderr


def test_a_file_that_is_gone_stops_the_container(specs: Path, root: DriverRoot) -> None:
    file(root.files.path, "/usr/bin/nvidia-smi").unlink()
    done = run(specs, MIG, "true")
    assert done.returncode != 0
    assert "nvidia-smi" in done.stderr
