# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own programs, for the tests that need them."""

import os
from pathlib import Path


def binary(name: str) -> str | None:
    """The path of a program in the folder that KUBEBUILDER_ASSETS names; None where it is not there."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(folder or "", name)
    return str(path) if folder and path.is_file() else None
