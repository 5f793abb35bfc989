# SPDX-License-Identifier: Apache-2.0
"""Every contract of .importlinter is broken by an import that violates it."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[1]
PREFIX = "importlinter:contract:"

VIOLATIONS = {
    "shared": ("dra_driver.config.select", "dra_driver.gpu.nvml"),
    "processes": ("controller.node.publisher", "dra_driver.scheduler.cel"),
    "apart": ("kubeletplugin.host.programs", "controller.node.writer"),
    "downwards": ("dra_driver.gpu.labels", "controller.node.labels"),
    "tests": ("dra_driver.process.files", "tests"),
    "resource": ("dra_driver.kube.resource.quantity", "dra_driver.process.parsing"),
    "api": ("dra_driver.kube.api.leases", "dra_driver.process.boot"),
    "scheduler": ("dra_driver.scheduler.pods.quota", "dra_driver.process.files"),
    "gpu": ("dra_driver.gpu.layout", "dra_driver.kube.api.client"),
    "config": ("dra_driver.config.decode", "dra_driver.kube.api.errors"),
    "domains": ("dra_driver.domains.names", "dra_driver.domains.objects"),
    "daemon": ("dra_driver.domains.daemon.peers", "dra_driver.gpu.imex"),
    "dryrun": ("dra_driver.dryrun.snapshot", "dra_driver.domains.daemon.config"),
    "pods": ("dra_driver.scheduler.cel.types", "dra_driver.scheduler.allocator.search"),
    "cel": ("dra_driver.scheduler.cel.parse.macros", "dra_driver.scheduler.cel.declarations"),
    "cycles": ("dra_driver.scheduler.cel.library.values", "dra_driver.scheduler.cel.library.network"),
    "sandbox": ("dra_driver.sandbox.loop", "dra_driver.sandbox.nodes"),
    "apiserver": ("dra_driver.sandbox.apiserver.objects", "dra_driver.sandbox.apiserver.opaque"),
    "kubelet": ("dra_driver.sandbox.kubelet.cdi", "dra_driver.config.decode"),
    "controller": ("controller.node.writer", "controller.cluster.collection"),
    "cluster": ("controller.cluster.leader", "controller.cluster.caretaker"),
    "webhook": ("controller.webhook.server", "grpc"),
    "plugin": ("kubeletplugin.host.modules", "kubeletplugin.claims.files"),
    "features": ("kubeletplugin.features.mps.memory", "kubeletplugin.features.fabric.partitions"),
    "cdi": ("kubeletplugin.containers.cdi.spec", "dra_driver.process.parsing"),
    "mps": ("kubeletplugin.features.mps.main", "pynvml"),
}
"""For each contract, a module and an import that the contract forbids to it."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter prints about a copy of the packages in which each violation is planted."""
    folder = tmp_path_factory.mktemp("layers")
    shutil.copy(ROOT / ".importlinter", folder)
    for package in ("controller", "dra_driver", "kubeletplugin"):
        for file in (ROOT / package).rglob("*.py"):
            copy = folder / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    for module, imported in VIOLATIONS.values():
        with _file_of(folder, module).open("a", encoding="utf-8") as copied:
            copied.write(f"import {imported}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "1000", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def _file_of(folder: Path, module: str) -> Path:
    path = folder.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _contracts() -> dict[str, str]:
    """The names of the contracts, by identifier."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / ".importlinter", encoding="utf-8")
    return {
        section.removeprefix(PREFIX): settings[section]["name"]
        for section in settings.sections()
        if section.startswith(PREFIX)
    }


def _explanation(report: str, name: str) -> str:
    """The part of the report that tells why a contract is broken; empty if it is not."""
    headings = "|".join(re.escape(known) for known in _contracts().values())
    parts = re.split(rf"^({headings})\n-+\n", report.partition("Broken contracts")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(name, "")


def _names(explanation: str, module: str, imported: str) -> bool:
    """Whether an explanation has this import. That of a cycle has names relative to a package."""
    package = module.rpartition(".")[0]
    absolute = re.sub(r"(?<= )\.", f"{package}.", explanation)
    return re.search(rf"^- +{re.escape(f'{module} -> {imported}')} \(", absolute, flags=re.MULTILINE) is not None


def test_each_contract_has_a_violation() -> None:
    assert VIOLATIONS.keys() == _contracts().keys()


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_contract_is_broken_by_its_violation(report: str, contract: str) -> None:
    module, imported = VIOLATIONS[contract]
    assert _names(_explanation(report, _contracts()[contract]), module, imported)
