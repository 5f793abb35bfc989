# SPDX-License-Identifier: Apache-2.0
"""What a documented command is run in: the programs of this checkout, a cluster or none, a copy to write to."""

import os
import shutil
import sys
from pathlib import Path

from .commands import ROOT

BIN = Path(sys.executable).parent
NOT_INHERITED = ("KUBECONFIG", "DRA_SANDBOX_FOLDER", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
"""What would lead a command to something of its caller's: a cluster, or flags of the `make` that runs the tests."""


def environment(kubeconfig: Path | None = None) -> dict[str, str]:
    """Ours, with the commands of this checkout, and a cluster or none."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    cluster = {"KUBECONFIG": str(kubeconfig)} if kubeconfig is not None else {}
    return {**inherited, **cluster, "PATH": f"{BIN}:{os.environ['PATH']}"}


def copy_checkout(folder: Path) -> None:
    """Make `folder` a copy of the checkout, without what git has and what was built. Bytecode is copied: without it,
    all modules are compiled, which takes seconds.
    """
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "build", "dist", "shared"))
    shutil.copy(ROOT / ".dockerignore", folder)
