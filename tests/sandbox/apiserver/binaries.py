# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own programs, for the tests that need them."""

import os
import shutil
from pathlib import Path


def binary(name: str) -> str | None:
    """The path of a program in the folder of KUBEBUILDER_ASSETS, else on the PATH; None where it is in neither."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(folder or "", name)
    return str(path) if folder and path.is_file() else shutil.which(name)
