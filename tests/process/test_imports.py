# SPDX-License-Identifier: Apache-2.0
"""The modules that each process on a cluster loads at its start: others would cost memory on every node.

The contracts in .importlinter follow imports in the source. Here, a new interpreter imports the module of the command,
and `sys.modules` has everything that this loaded, imports of other packages included.
"""

import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOR_PEOPLE: Final = ("dra_driver.dryrun", "dra_driver.sandbox", "dra_driver.scheduler", "kubernetes", "rich")
NVML: Final = ("dra_driver.gpu.nvml_library", "pynvml")
GRPC: Final = ("asyncio", "google.protobuf", "grpc")
API_CLIENT: Final = ("dra_driver.kube.api", "urllib3", "yaml")
NOT_LOADED: Final[Mapping[str, Sequence[str]]] = {
    "dra-controller": (*NVML, *GRPC, "kubeletplugin"),
    "dra-cluster-controller": (*NVML, *GRPC, "kubeletplugin"),
    "dra-webhook": (*NVML, *GRPC, *API_CLIENT, "dra_driver.gpu", "kubeletplugin"),
    "dra-kubeletplugin": (*NVML, "controller"),
    "dra-mps": (*NVML, *GRPC, *API_CLIENT, "controller", "prometheus_client"),
    "dra-imex-daemon": (*NVML, *GRPC, "controller", "dra_driver.gpu", "kubeletplugin"),
}


def loaded(command: str) -> set[str]:
    """The names of all modules that the module of a command loads in a new interpreter."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module = scripts[command].partition(":")[0]
    program = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize("command", NOT_LOADED)
def test_process_loads_only_what_it_needs(command: str) -> None:
    modules = loaded(command)
    assert "dra_driver.process.command" in modules
    assert {name for name in (*FOR_PEOPLE, *NOT_LOADED[command]) if name in modules} == set()
