# SPDX-License-Identifier: Apache-2.0
"""Share files that the plugin writes while dra-mps removes folders."""

import threading
from pathlib import Path

import pytest

from dra_driver.errors import MpsError
from dra_driver.process.files import open_lock, try_lock
from kubeletplugin.features.mps.shares import MpsShare, ShareFiles, ShareName

NAME = ShareName("s0123456789", "GPU-1", "a")
SHARE = MpsShare(2, ("GPU-1",))


def test_a_share_is_not_lost_while_the_folder_of_its_group_is_removed(tmp_path: Path) -> None:
    files, done, errors = ShareFiles(tmp_path), threading.Event(), list[OSError]()

    def look() -> None:
        """As dra-mps looks at groups that have no share, all the time."""
        while not done.is_set():
            try:
                files.discard(NAME.server)
            except MpsError:
                continue
            except OSError as error:
                errors.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):
            files.put(NAME, SHARE)
            assert files.get(NAME) == SHARE
            files.remove(NAME)
    finally:
        done.set()
        looking.join()
    assert errors == []


def test_another_process_that_hangs_is_named(tmp_path: Path) -> None:
    files = ShareFiles(tmp_path, patience=0.05)
    assert try_lock(open_lock(tmp_path / "groups.lock"))
    with pytest.raises(MpsError, match="does dra-mps hang"):
        files.put(NAME, SHARE)
