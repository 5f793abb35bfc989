# SPDX-License-Identifier: Apache-2.0
"""Listing of files that another thread or process removes meanwhile."""

import glob
from pathlib import Path


def paths_in(folder: Path, pattern: str = "*") -> list[Path]:
    """The sorted paths below a folder that match a pattern; none if there is no folder.

    Path.glob and Path.iterdir raise FileNotFoundError for a folder that is removed before they read it.
    """
    names = glob.glob(pattern, root_dir=folder, include_hidden=True)  # noqa: PTH207 - see above
    return sorted(folder / name for name in names)
