# SPDX-License-Identifier: Apache-2.0
"""The same specs before the Container Device Interface project's own program.

`cdi` is the command of github.com/cncf-tags/container-device-interface: the library that container runtimes use, with
the format's JSON schema. Without it on PATH these tests are skipped.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.containers.cdi import (
    BASE_DEVICE,
    BASE_KIND,
    CLAIM_KIND,
    HookTool,
    SpecDirectory,
    base_spec,
    claim_device,
    claim_spec,
    common_edits,
    gpu_edits,
)
from kubeletplugin.containers.cdi.spec import Spec, dumps
from tests.support.nodes import driver_root_of

from .test_validation import GOOD, REFUSED
from .trees import MAJORS, VERSION, Terminal, kernel, libraries, link

CDI = shutil.which("cdi")

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(CDI is None, reason="the program cdi (container-device-interface) is not on PATH"),
]


def complaints(directory: Path, document: bytes) -> str:
    (directory / "spec.json").write_bytes(document)
    done = subprocess.run(
        [str(CDI), "--spec-dirs", str(directory), "validate"], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    return "" if "No CDI cache errors" in output else output


@pytest.mark.parametrize("spec", GOOD)
def test_valid_spec_is_valid_for_the_official_tool(tmp_path: Path, spec: Spec) -> None:
    assert complaints(tmp_path, dumps(spec)) == ""


@pytest.mark.parametrize("spec", [case[0] for case in REFUSED])
def test_refused_spec_is_invalid_for_the_official_tool(tmp_path: Path, spec: Spec) -> None:
    assert complaints(tmp_path, dumps(spec))


@pytest.mark.parametrize("spec", GOOD)
def test_the_version_written_is_the_lowest_that_is_accepted(tmp_path: Path, spec: Spec) -> None:
    document = json.loads(dumps(spec))
    versions = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]
    accepted = [v for v in versions if not complaints(tmp_path, json.dumps(document | {"cdiVersion": v}).encode())]
    assert accepted[0] == document["cdiVersion"]


UID = "9f53c0e5-9f54-647d-a53c-73174df363ba"
ADDRESS = "0000:17:00.0"


def injected(directory: Path, devices: Sequence[str]) -> dict[str, Any]:
    """What the library makes of an OCI spec for a container that asks for `devices`."""
    plain = directory.parent / "oci.json"
    plain.write_text(
        '{"ociVersion": "1.2.0", "process": {"args": ["sh"], "cwd": "/", "user": {"uid": 1000, "gid": 1000}}}'
    )
    command = [str(CDI), "--spec-dirs", str(directory), "inject", "--output", "json", str(plain), *devices]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.partition(":")[2])
    return found


@pytest.fixture
def claimed(tmp_path: Path, terminal: Terminal) -> Path:
    """A CDI directory with the node's spec and a claim of eight GPUs, the first of which has a DRM node of a group."""
    libraries(tmp_path / "driver", "/usr/lib64")
    kernel(tmp_path / "driver", MAJORS)
    root = driver_root_of(tmp_path / "driver", "/run/nvidia/driver")
    (root.sys / "bus/pci/devices" / ADDRESS / "drm/card0").mkdir(parents=True)
    link(root.dev.path, "/dev/dri/card0", terminal.path)
    gpus = {f"gpu-{minor}": gpu_edits(root, minor, "" if minor else ADDRESS).edits for minor in range(8)}
    directory = tmp_path / "cdi"
    common = common_edits(root, VERSION, HookTool("/usr/bin/nvidia-cdi-hook")).edits
    SpecDirectory(directory, BASE_KIND).write(base_spec(common))
    SpecDirectory(directory, CLAIM_KIND).write(claim_spec(UID, gpus), UID)
    return directory


def test_a_container_of_eight_gpus_gets_the_driver_once(claimed: Path) -> None:
    gpus = [claim_device(UID, f"gpu-{minor}") for minor in range(8)]
    one, all_gpus = injected(claimed, [gpus[1], BASE_DEVICE]), injected(claimed, [*gpus, BASE_DEVICE])
    assert len(one["hooks"]["createContainer"]) == 4
    for part in ("hooks", "mounts"):
        assert all_gpus[part] == one[part]
    assert sorted(all_gpus["process"]["env"]) == ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64", "NVIDIA_VISIBLE_DEVICES=void"]


def test_a_user_who_is_not_root_is_of_the_group_that_may_open_a_drm_node(claimed: Path, terminal: Terminal) -> None:
    found = injected(claimed, [claim_device(UID, "gpu-0"), BASE_DEVICE])
    assert found["process"]["user"]["additionalGids"] == [terminal.gid]
    (node,) = (one for one in found["linux"]["devices"] if one["path"] == "/dev/dri/card0")
    assert (node["fileMode"], node["uid"], node["gid"]) == (0o660, 1000, terminal.gid)


def test_a_claim_that_another_driver_described_too_cannot_be_resolved(claimed: Path) -> None:
    directory = SpecDirectory(claimed, CLAIM_KIND)
    other = directory.file(UID).with_suffix(".yaml")
    other.write_bytes(directory.file(UID).read_bytes())  # JSON is YAML
    assert directory.foreign_files() == [other]
    names = [claim_device(UID, "gpu-0")]
    with pytest.raises(subprocess.CalledProcessError):
        injected(claimed, names)
    other.unlink()
    assert injected(claimed, names)["linux"]["devices"]
