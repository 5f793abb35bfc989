# SPDX-License-Identifier: Apache-2.0
"""A plugin on a node whose /sys behaves like a kernel's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.kubeletplugin.inside import QUICK, ApiServer, Plugin
from tests.support.fuse import usable
from tests.support.kernel import AUDIO, Function, Kernel
from tests.support.nodes import make_node

TIMES = replace(QUICK, write=5.0)
HARDWARE: Final = str(Path(__file__).with_name("node.yaml"))
"""The simulated node, for `Plugin`."""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    """The node's kernel. The first GPU has an audio function in its group, and a bridge above it."""
    if not usable():
        pytest.skip("needs root and /dev/fuse")
    make_node(tmp_path / "node", HARDWARE)
    kernel = Kernel(tmp_path / "node")
    first = kernel.gpus[0]
    kernel.add(Function(audio_of(first), "0x040300", AUDIO), kernel.group(first))
    kernel.add(Function("0000:00:01.0", "0x060400", "pcieport", "0x8086"), kernel.group(first))
    with kernel.running():
        yield kernel


def audio_of(address: str) -> str:
    """The audio function of a GPU."""
    return f"{address.rpartition('.')[0]}.1"


@pytest.fixture
def plugin(tmp_path: Path, kernel: Kernel, api: ApiServer) -> Iterator[Plugin]:
    """A plugin that runs on the node."""
    plugin = Plugin(tmp_path, api, hardware=HARDWARE, times=TIMES)
    yield plugin
    plugin.stop()
