# SPDX-License-Identifier: Apache-2.0
"""What a claim with MPS gives a real container: podman resolves the CDI spec of the claim, as in
tests/kubeletplugin/containers/cdi.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.containers.cdi import claim_device
from kubeletplugin.features.mps.step import mps_steps_of
from tests.kubeletplugin.containers.cdi.test_runtime import run
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.claims import mps
from tests.support.mps import mps_of

pytestmark = pytest.mark.node

MIG = "gpu-4-mig-1g10gb-19-0"
LOOK = """
printenv | grep ^CUDA_MPS | sort
stat --format '%F %a' "$CUDA_MPS_PIPE_DIRECTORY/control"
ls /run/nvidia-mps
touch /dev/shm/written
"""


@pytest.fixture(scope="module", autouse=True)
def _podman_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0 or not (shutil.which("podman") and shutil.which("unshare")):
        pytest.skip("needs root, podman and unshare")
    probe = run(tmp_path_factory.mktemp("empty"), [], "true")
    if probe.returncode != 0:
        pytest.skip(f"podman cannot run a container on this machine: {probe.stderr.strip()}")


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        made = Plugin(Path(name), ApiServer())
        with mps_of(made.root, made.node, made.root / "mps.log"):
            yield made
        made.stop()


def prepared(plugin: Plugin, device: str) -> ClaimRef:
    """A claim that is prepared."""
    claim = plugin.api.add([device], sharing=mps(defaultPinnedDeviceMemoryLimit="4Gi"))
    plugin.engine.prepare(claim)
    return claim


@pytest.mark.parametrize("device", ["gpu-0", MIG])
def test_environment_mounts_and_limits_of_a_container(plugin: Plugin, device: str) -> None:
    claim = prepared(plugin, device)
    (server,) = [step.name.server for step in mps_steps_of(plugin.record(claim).plan)]
    done = run(plugin.cdi, [claim_device(claim.uid, device)], LOOK)
    assert done.stderr == ""
    limit = [] if device == "gpu-0" else ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M"]
    assert done.stdout.splitlines() == [
        *limit,
        f"CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/{server}/pipe",
        "socket 666",
        server,
    ]
    assert [path.name for path in plugin.root.glob("shm/*/written")] == ["written"]


def test_a_container_can_have_the_devices_of_two_claims(plugin: Plugin) -> None:
    claims = [(prepared(plugin, device), device) for device in ("gpu-0", "gpu-1")]
    servers = sorted(step.name.server for claim, _ in claims for step in mps_steps_of(plugin.record(claim).plan))
    devices = [claim_device(claim.uid, device) for claim, device in claims]
    done = run(
        plugin.cdi, devices, "ls /run/nvidia-mps; ls /dev/nvidia0 /dev/nvidia1; ls /run/nvidia-mps/*/pipe/control"
    )
    assert done.stderr == ""
    assert done.stdout.split() == [
        *servers,
        *("/dev/nvidia0", "/dev/nvidia1"),
        *(f"/run/nvidia-mps/{one}/pipe/control" for one in servers),
    ]
