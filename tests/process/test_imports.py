# SPDX-License-Identifier: Apache-2.0
"""The modules that programs load: others would cost memory on every node, and time at the start of a command.

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

pytestmark = pytest.mark.node

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


def loaded(command: str, *arguments: str) -> set[str]:
    """The names of all modules that the module of a command loads in a new interpreter; with arguments, those that are
    loaded when the command ends.
    """
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, function = scripts[command].partition(":")
    call = f"{module}.{function}()" if arguments else ""
    program = f"import atexit, sys, {module}; atexit.register(lambda: print('loaded', *sys.modules)); {call}"
    words = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.rpartition("loaded ")[2].split())


SUBCOMMANDS: Final = {
    *("dra_driver.config", "dra_driver.gpu", "dra_driver.kube", "dra_driver.scheduler"),
    *("dra_driver.dryrun.options", "dra_driver.dryrun.report", "dra_driver.dryrun.sources"),
    *("rich", "urllib3", "yaml"),
}
"""Modules that subcommands of dra-dryrun load."""


@pytest.mark.parametrize("command", NOT_LOADED)
def test_process_loads_only_what_it_needs(command: str) -> None:
    modules = loaded(command)
    assert "dra_driver.process.command" in modules
    assert {name for name in (*FOR_PEOPLE, *NOT_LOADED[command]) if name in modules} == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["help"], ["version"], ["completion", "bash"]], ids=" ".join
)
def test_help_and_version_of_the_dry_run_load_no_subcommand(arguments: list[str]) -> None:
    modules = loaded("dra-dryrun", *arguments)
    assert "dra_driver.dryrun.main" in modules
    assert SUBCOMMANDS & modules == set()


@pytest.mark.parametrize("word", ["", "c", "pod.yaml"])
def test_completion_of_a_first_word_loads_no_subcommand(word: str) -> None:
    assert SUBCOMMANDS & loaded("kubectl_complete-dra_dryrun", word) == set()


def test_a_dry_run_loads_the_modules_of_its_subcommand() -> None:
    assert SUBCOMMANDS & loaded("dra-dryrun", "fit", "--help") == SUBCOMMANDS
