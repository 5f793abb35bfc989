# SPDX-License-Identifier: Apache-2.0
"""All that there is on a node, to be compared: two pictures are equal only if nothing tells the nodes apart."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dra_driver.files import read_file
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.simulation import SimulatedNode
from tests.kubeletplugin.inside import MARKS
from tests.support.mps import daemons_of

Picture = dict[str, Any]


def picture(node: SimulatedNode, state: Path, cdi: Path) -> Picture:
    """The GPUs' modes, settings and instances, and the files of the plugin (in `state` and `cdi`) with their content;
    the names of those that were left half written apart.
    """
    nvml = node.nvml()
    nvml.initialize()  # one that was initialized before does not survive a reload of the driver
    gpus = read_inventory(nvml, node.driver_root / "sys").gpus
    return {
        "modes": [str(gpu.mig_mode) for gpu in gpus],
        "settings": [
            (nvml.compute_mode(nvml.device_by_uuid(gpu.uuid)), node.nvidia_smi.level(gpu.uuid)) for gpu in gpus
        ],
        "instances": [f"{gpu.index}/{one.placement} {one.devices}" for gpu in gpus for one in gpu.mig_instances],
        "records": _files(state / "claims"),
        "specs": _files(cdi),
        "half written": sorted(path.name for folder in (state / "claims", cdi) for path in _half_written(folder)),
        "marks": sorted(path.name for name in MARKS for path in _entries(state / name)),
        "MPS": sorted(str(path.relative_to(state / "mps")) for path in (state / "mps").glob("s*/shares/*.json")),
        "MPS folders": sorted(path.parent.name for path in (state / "mps").glob("s*/shares")),
        "MPS shared memory": sorted(path.name for path in _entries(state / "shm")),
        "MPS processes": daemons_of(state),
    }


def _files(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(_entries(folder)):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            if path.suffix == ".json":
                found[path.name] = _content(path)
    return found


def _content(path: Path) -> Any:
    try:
        return json.loads(read_file(path))
    except (ValueError, RecursionError):
        return "damaged"


def _half_written(folder: Path) -> Iterable[Path]:
    return (path for path in _entries(folder) if path.suffix != ".json")


def _entries(folder: Path) -> Iterable[Path]:
    return folder.iterdir() if folder.is_dir() else ()
