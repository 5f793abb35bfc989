# SPDX-License-Identifier: Apache-2.0
"""The state of a node, to be compared: two states are equal only if all files and settings of the nodes are."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dra_driver.gpu.simulated.nvml import gpu_uuid
from dra_driver.gpu.simulated.store import StateFolder
from dra_driver.process.files import read_file
from tests.kubeletplugin.inside import MARKS
from tests.support.hardware import ControlledNode
from tests.support.listing import paths_in
from tests.support.mps import daemons_of
from tests.support.nodes import stored_boards, stored_instances

NodeState = dict[str, Any]


def node_state(node: ControlledNode, state: Path, cdi: Path) -> NodeState:
    """The GPUs' modes, settings and instances, and the files of the plugin (in `state` and `cdi`) with their content;
    the names of those that were left half written apart.
    """
    boards = stored_boards(node)
    identity = StateFolder(node.root / "state").read_system().identity
    return {
        "modes": [f"{one.mig_current}, {one.mig_pending} after a reset" for one in boards],
        "settings": [
            (one.compute_mode, node.nvidia_smi.level(gpu_uuid(identity, index))) for index, one in enumerate(boards)
        ],
        "instances": [f"{gpu}/{place} {devices}" for gpu, place, devices in stored_instances(node)],
        "records": _files(state / "claims"),
        "specs": _files(cdi),
        "half written": sorted(path.name for folder in (state / "claims", cdi) for path in _half_written(folder)),
        "marks": sorted(path.name for name in MARKS for path in paths_in(state / name)),
        "MPS": [str(path.relative_to(state / "mps")) for path in paths_in(state / "mps", "s*/shares/*.json")],
        "MPS folders": [path.parent.name for path in paths_in(state / "mps", "s*/shares")],
        "MPS shared memory": [path.name for path in paths_in(state / "shm")],
        "MPS processes": daemons_of(state),
    }


def _files(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in paths_in(folder):
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
    return (path for path in paths_in(folder) if path.suffix != ".json")
