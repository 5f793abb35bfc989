# SPDX-License-Identifier: Apache-2.0
"""Files that all workers of a run share."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from .preloaded import FOLDER_VARIABLE, locked


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first caller of a run fills by `make`, and that ends with the run. Nobody changes it later."""
    place = Path(os.environ[FOLDER_VARIABLE]) / name
    place.mkdir(exist_ok=True)
    made, unfinished = place / "made", place / "unfinished"
    with locked(place):
        if not made.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(made)
    return made
