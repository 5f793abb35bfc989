# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.dryrun.conftest import DryRun

from .build import Migrate, migrating


@pytest.fixture
def migrate(dryrun: DryRun, tmp_path: Path) -> Migrate:
    """Runs the command on objects, each of which is a file of one folder."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    return migrating(dryrun, folder)
