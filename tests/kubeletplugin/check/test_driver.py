# SPDX-License-Identifier: Apache-2.0
"""The driver's kernel module and library, and whether they belong together."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.options import Hardware
from kubeletplugin.check.driver import DriverFacts, NamedHook, driver_findings, read_driver
from kubeletplugin.check.host import Unreadable
from kubeletplugin.finding import CheckResult, Level
from tests.support.nodes import make_node

from .support import of_level

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 03:24:07 UTC 2025\nGCC version: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)\n"
GOOD = DriverFacts(
    module=CLOSED,
    module_path="/proc/driver/nvidia/version",
    library="/usr/lib64/libnvidia-ml.so.570.86.15",
    hook="/usr/bin/nvidia-cdi-hook",
    driver_root="/run/nvidia/driver",
)


def finding(facts: DriverFacts, check: str) -> CheckResult:
    (found,) = (one for one in driver_findings(facts) if one.check == check)
    return found


@pytest.mark.parametrize("text", [CLOSED, OPEN])
def test_a_driver_whose_parts_are_of_one_version_passes(text: str) -> None:
    findings = list(driver_findings(replace(GOOD, module=text)))
    assert of_level(findings, Level.PASS) == ["driver module", "driver library", "driver versions", "cdi hook"]
    assert findings[1].text == "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.570.86.15"


@pytest.mark.parametrize(
    ("change", "check", "level", "says", "remedy"),
    [
        ({"module": None}, "driver module", "fail", "/proc/driver/nvidia/version is missing", "modprobe nvidia"),
        ({"module": Unreadable("/proc/x", "Permission denied")}, "driver module", "fail", "Permission denied", "root"),
        ({"module": "NVRM version: ?\n"}, "driver module", "warn", "'NVRM version: ?'", "report"),
        ({"module": CLOSED.replace("570.86.15", "550.54.15")}, "driver module", "warn", "older than 565", "upgrade"),
        ({"library": None}, "driver library", "fail", "no libnvidia-ml.so.1 below /run/nvidia/driver", "driver-root"),
        ({"library": "/usr/lib64/libnvidia-ml.so.575.1.2"}, "driver versions", "fail", "575.1.2", "restart the node"),
        ({"hook": None}, "cdi hook", "warn", "no nvidia-cdi-hook", "nvidia-container-toolkit-base"),
        (
            {"named_hook": NamedHook("/x", exists=False)},
            "cdi hook",
            "fail",
            "/x does not exist on the host",
            "nvidiaCDIHookPath",
        ),
    ],
)
def test_problem_is_named_with_a_remedy(
    change: dict[str, object], check: str, level: str, says: str, remedy: str
) -> None:
    found = finding(replace(GOOD, **change), check)  # type: ignore[arg-type]
    assert found.level == level
    assert says in found.text
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("exists", "text"), [(True, "/opt/nvidia-ctk"), (None, "/opt/nvidia-ctk (not visible from here)")]
)
def test_a_hook_that_is_named_need_not_be_found(exists: bool | None, text: str) -> None:
    found = finding(replace(GOOD, hook=None, named_hook=NamedHook("/opt/nvidia-ctk", exists)), "cdi hook")
    assert (found.level, found.text) == (Level.PASS, text)


def test_versions_are_not_compared_when_one_is_unknown() -> None:
    findings = list(driver_findings(replace(GOOD, library="/usr/lib64/libnvidia-ml.so.1")))
    assert "driver versions" not in [one.check for one in findings]


def test_the_facts_of_a_node_are_read_below_its_driver_root(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8").node
    root = node.driver_root
    facts = read_driver(Hardware(node.nvml, root, Path("/run/nvidia/driver"), root, root / "proc", root / "sys", root))
    assert facts.module_version == facts.library_version == "570.158.01"
    assert facts.driver_root == "/run/nvidia/driver"
    (root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").unlink()
    (root / "proc/driver/nvidia/version").unlink()
    facts = read_driver(Hardware(node.nvml, root, root, root, root / "proc", root / "sys", root))
    assert (facts.library, facts.module) == (None, None)
