# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own programs, where they are to be had."""

import os
import shutil
from pathlib import Path


def binary(name: str) -> str | None:
    """The path of a program in KUBE_BIN_DIR, or on PATH."""
    folder = os.environ.get("KUBE_BIN_DIR")
    if folder and (Path(folder) / name).is_file():
        return str(Path(folder) / name)
    return shutil.which(name)
