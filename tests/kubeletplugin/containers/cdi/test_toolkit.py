# SPDX-License-Identifier: Apache-2.0
"""Our specs beside those of `nvidia-ctk cdi generate` of nvidia-container-toolkit 1.20, field by field.

The fields and their order are those of cmd/nvidia-ctk/cdi/generate/generate_test.go and pkg/nvcdi (commit d34b304), for
the same files below a driver root: a whole GPU, a MIG device, and all GPUs of a node.
"""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.containers.cdi import (
    ContainerEdits,
    DriverRoot,
    HookTool,
    Root,
    base_spec,
    claim_spec,
    common_edits,
    gpu_edits,
    mig_edits,
)
from kubeletplugin.containers.cdi.fingerprint import fingerprint
from kubeletplugin.containers.cdi.spec import dumps

from .trees import file, kernel, link, program

JSON = dict[str, Any]
VERSION = "999.88.77"
FOLDER = "/lib/x86_64-linux-gnu"
HOOK = HookTool("/usr/bin/nvidia-cdi-hook")
OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


def toolkit_hook(*arguments: str) -> JSON:
    return {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", *arguments],
        "env": ["NVIDIA_CTK_DEBUG=false"],
    }


def toolkit_mount(path: str, root: Path) -> JSON:
    return {"hostPath": f"{root}{path}", "containerPath": path, "options": OPTIONS}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of the toolkit's own tests, and a program that it added in 1.20."""
    file(tmp_path, f"{FOLDER}/libcuda.so.{VERSION}")
    file(tmp_path, f"{FOLDER}/vdpau/libvdpau_nvidia.so.{VERSION}")
    link(tmp_path, f"{FOLDER}/libcuda.so.1", f"libcuda.so.{VERSION}")
    program(tmp_path, "/usr/bin/nvidia-xconfig")
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        link(tmp_path, f"/dev/{name}", "/dev/null")
    kernel(tmp_path, {"nvidia-caps": 235}, {"gpu0/mig/gi1/access": 1, "gpu0/mig/gi1/ci0/access": 2})
    return tmp_path


def root_of(tree: Path, *folders: str) -> DriverRoot:
    root = Root(tree, str(tree))
    return DriverRoot(root, root, tree / "proc", tree / "sys", root, folders)


def common(tree: Path) -> JSON:
    document: JSON = json.loads(dumps(base_spec(common_edits(root_of(tree), VERSION, HOOK).edits)))
    edits: JSON = document["containerEdits"]
    return edits | {"env": [*edits["env"], *document["devices"][0]["containerEdits"]["env"]]}


def nodes(edits: ContainerEdits) -> list[JSON]:
    (device,) = json.loads(dumps(claim_spec("uid", {"gpu-0": edits})))["devices"]
    return [{"path": one["path"], "hostPath": one["hostPath"]} for one in device["containerEdits"]["deviceNodes"]]


def toolkit_nodes(tree: Path, *names: str) -> list[JSON]:
    return [{"path": f"/dev/{name}", "hostPath": f"{tree}/dev/{name}"} for name in names]


def test_the_environment_is_that_of_the_toolkit(tree: Path) -> None:
    assert common(tree)["env"] == [f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}", "NVIDIA_VISIBLE_DEVICES=void"]


def test_the_hooks_are_those_of_the_toolkit(tree: Path) -> None:
    """The toolkit also adds subfolders to the loader's cache, whose libraries programs load by their paths."""
    assert common(tree)["hooks"][1:] == [
        toolkit_hook("enable-cuda-compat", f"--host-driver-version={VERSION}"),
        toolkit_hook("update-ldcache", "--folder", FOLDER),
        toolkit_hook("disable-device-node-modification"),
        toolkit_hook("update-application-profile"),
    ]
    links = common(tree)["hooks"][0]
    assert links["args"][:2] == ["nvidia-cdi-hook", "create-symlinks"]
    assert f"libcuda.so.1::{FOLDER}/libcuda.so" in links["args"]


def test_the_mounts_are_those_of_the_toolkit(tree: Path) -> None:
    paths = (
        f"{FOLDER}/libcuda.so.{VERSION}",
        f"{FOLDER}/vdpau/libvdpau_nvidia.so.{VERSION}",
        "/usr/bin/nvidia-xconfig",
    )
    assert common(tree)["mounts"] == [toolkit_mount(path, tree) for path in paths]


def test_the_device_nodes_of_each_kind_are_those_of_the_toolkit(tree: Path) -> None:
    root = root_of(tree)
    assert [one["path"] for one in common(tree)["deviceNodes"]] == ["/dev/nvidiactl"]
    assert nodes(gpu_edits(root, 0).edits) == toolkit_nodes(tree, "nvidia0")
    assert nodes(gpu_edits(root, 0).edits + gpu_edits(root, 1).edits) == toolkit_nodes(tree, "nvidia0", "nvidia1")
    mig = [one.path for one in mig_edits(root, 0, 1, 0).edits.device_nodes]
    assert mig == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"]


# Libraries in several folders


def loader_cache(*paths: str) -> bytes:
    """A cache with these libraries, as glibc writes it."""
    strings, offsets = b"", []
    start = 48 + 24 * len(paths)
    for path in paths:
        offsets.append(start + len(strings))
        strings += path.encode() + b"\0"
    entries = b"".join(struct.pack("<iIIIQ", 0x0303, offset, offset, 0, 0) for offset in offsets)
    header = b"glibc-ld.so.cache1.1" + struct.pack("<II", len(paths), len(strings))
    return header.ljust(48, b"\0") + entries + strings


def test_folders_of_the_loaders_cache_are_searched(tree: Path) -> None:
    file(tree, f"/opt/nvidia/lib/libnvidia-fbc.so.{VERSION}")
    (tree / "etc").mkdir(exist_ok=True)
    (tree / "etc/ld.so.cache").write_bytes(loader_cache("/opt/other/libm.so.6", "/opt/nvidia/lib/libnvidia-fbc.so.1"))
    edits = common(tree)
    assert toolkit_mount(f"/opt/nvidia/lib/libnvidia-fbc.so.{VERSION}", tree) in edits["mounts"]
    assert edits["env"][0] == f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}:/opt/nvidia/lib"
    assert edits["hooks"][2] == toolkit_hook("update-ldcache", "--folder", FOLDER, "--folder", "/opt/nvidia/lib")


def test_folders_of_the_administrator_are_searched(tree: Path) -> None:
    file(tree, f"/custom/libnvidia-fbc.so.{VERSION}")
    edits = common_edits(root_of(tree, "/custom"), VERSION, HOOK).edits
    assert f"/custom/libnvidia-fbc.so.{VERSION}" in [mount.container_path for mount in edits.mounts]
    assert edits.env == (f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}:/custom",)


def test_the_folder_of_libcuda_comes_first(tree: Path) -> None:
    file(tree, f"/usr/lib64/libnvidia-fbc.so.{VERSION}")
    assert common(tree)["env"][0] == f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}:/usr/lib64"


def test_a_new_folder_in_the_loaders_cache_changes_the_fingerprint(tree: Path) -> None:
    file(tree, f"/opt/nvidia/lib/libnvidia-fbc.so.{VERSION}")
    before = fingerprint(root_of(tree), VERSION)
    (tree / "etc").mkdir(exist_ok=True)
    (tree / "etc/ld.so.cache").write_bytes(loader_cache("/opt/nvidia/lib/libnvidia-fbc.so.1"))
    assert fingerprint(root_of(tree), VERSION) != before
