# SPDX-License-Identifier: Apache-2.0
"""Hosts in a folder, and findings by name."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.simulated import SimulatedNode
from kubeletplugin.check.driver import read_gpus
from kubeletplugin.check.host import Host
from kubeletplugin.checkfacts import CheckFacts
from kubeletplugin.finding import CheckResult, Level
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.node import Node


def make_host(root: Path, files: Mapping[str, str]) -> Host:
    """A host with these files; /var/run leads to /run by an absolute link, as on every distribution."""
    (root / "run").mkdir(parents=True)
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return Host(root)


def process(pid: int, name: str, *arguments: str, namespaces: str = "") -> dict[str, str]:
    """What /proc has of a process; `namespaces` are its numbers in PID namespaces further in."""
    return {
        f"/proc/{pid}/comm": f"{name}\n",
        f"/proc/{pid}/cmdline": "".join(f"{one}\0" for one in (f"/usr/bin/{name}", *arguments)),
        f"/proc/{pid}/status": f"Name:\t{name}\nNSpid:\t{pid}{namespaces}\n",
    }


def levels(findings: Iterable[CheckResult]) -> list[tuple[str, str]]:
    """(check, level) of each."""
    return [(finding.check, str(finding.level)) for finding in findings]


def only(findings: Iterable[CheckResult]) -> CheckResult:
    """The one that there is."""
    (finding,) = findings
    return finding


def of_level(findings: Iterable[CheckResult], level: Level) -> list[str]:
    """The checks that came out so."""
    return [finding.check for finding in findings if finding.level is level]


def hardware_of(node: SimulatedNode) -> Hardware:
    """The hardware of a node, whose driver is at /host on the host."""
    root = node.driver_root
    return Hardware(node.nvml, root, Path("/host"), root, root / "proc", root / "sys", root, fabric_manager=node.fabric)


def facts_of(folder: Path, hardware: Hardware, policy: NodePolicy | None = None) -> CheckFacts:
    """What the checks of kinds and features are given on a node without claims, whose files are in `folder`."""
    folders = NodeFolders(folder / "registry", folder / "plugin", folder / "cdi", folder / "shm", hardware)
    gpus = read_gpus(hardware)
    inventory = gpus if isinstance(gpus, Inventory) else None
    return CheckFacts(Node("node-a", "boot-1", folders, yields=False), policy or NodePolicy(), (), inventory)
