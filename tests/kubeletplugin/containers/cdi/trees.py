# SPDX-License-Identifier: Apache-2.0
"""Driver trees as distributions and installers lay them out, made of small files."""

from dataclasses import dataclass
from pathlib import Path

VERSION = "580.95.05"

SONAMES = {
    "libcuda.so": "libcuda.so.1",
    "libnvidia-ml.so": "libnvidia-ml.so.1",
    "libnvidia-nvvm.so": "libnvidia-nvvm.so.4",
    "libnvidia-ptxjitcompiler.so": "libnvidia-ptxjitcompiler.so.1",
}


def file(root: Path, path: str, text: str = "content\n", mode: int = 0o644) -> Path:
    """A file at the container path `path`."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)
    return target


def link(root: Path, path: str, text: str) -> None:
    """A symbolic link at the container path `path`."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(text)


def libraries(root: Path, folder: str, version: str = VERSION) -> None:
    """The libraries of a CUDA installation in `folder`, with the links that ldconfig and the installer make."""
    for name, soname in SONAMES.items():
        file(root, f"{folder}/{name}.{version}")
        link(root, f"{folder}/{soname}", f"{name}.{version}")
        link(root, f"{folder}/{name}", soname)


def program(root: Path, path: str, text: str = "#!/bin/sh\n") -> Path:
    """An executable at the container path `path`."""
    return file(root, path, text, 0o755)


def kernel(root: Path, majors: dict[str, int], capabilities: dict[str, int] | None = None) -> None:
    """What /proc tells: character drivers, and the minor of each capability such as `gpu0/mig/gi1/access`."""
    lines = "".join(f"{major:3} {name}\n" for name, major in majors.items())
    file(root, "/proc/devices", f"Character devices:\n  1 mem\n{lines}\nBlock devices:\n259 blkext\n  9 nvidia-caps\n")
    for capability, minor in (capabilities or {}).items():
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        file(root, f"/proc/driver/nvidia/capabilities/{capability}", text)


MAJORS = {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 510, "nvidia-caps": 235}
"""As on a node whose modules are loaded."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A real character device whose owner and group `gid` alone may open it, standing in for a DRM node."""

    path: str
    gid: int
    numbers: tuple[int, int]
