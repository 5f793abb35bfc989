# SPDX-License-Identifier: Apache-2.0
"""docs/install.md shows `dra-kubeletplugin check` on a node; the command itself cannot be run on it here."""

from pathlib import Path

from kubeletplugin.check.containerd import CONFIGS, containerd_findings, read_containerd
from kubeletplugin.check.driver import LIBRARY_CHECK, MODULE
from kubeletplugin.check.finding import passed
from kubeletplugin.check.gpus import NVML
from kubeletplugin.check.report import line
from tests.kubeletplugin.check.support import make_host

from .commands import COMMANDS, says

DRIVER = "570.158.01"
CONFIG = "version = 2\n" + "# a setting\n" * 39 + '[plugins."io.containerd.grpc.v1.cri"]\n'


def test_the_findings_that_are_shown_are_those_that_the_command_makes(tmp_path: Path) -> None:
    host = make_host(tmp_path, {CONFIGS[0]: CONFIG})
    findings = [
        passed(MODULE, DRIVER),
        passed(LIBRARY_CHECK, f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER}"),
        passed(NVML, f"driver {DRIVER}, CUDA 12.8"),
        *containerd_findings(read_containerd(host, CONFIGS[0], (1, 7, 27), "/var/run/cdi")),
    ]
    (shown,) = (one.output for one in COMMANDS if "-- dra-kubeletplugin check" in one.text)
    printed = "".join(f"{line(one)}\n" for one in findings)
    assert says(shown, printed), printed
