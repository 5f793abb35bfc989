# SPDX-License-Identifier: Apache-2.0
"""The boot of the node in which marks were set.

Marks of an earlier boot say nothing, because a reboot has undone what they describe. So they are removed before any
claim is prepared, and the file `boot-id` tells that this was done. If it cannot be written, the node does not become
ready.
"""

import logging
from pathlib import Path

from dra_driver.errors import NotAFileError
from dra_driver.process.files import read_file, write_file

log = logging.getLogger(__name__)


def marks_are_of(folder: Path, boot_id: str) -> bool:
    """Whether the marks in the driver's `folder` are of this boot."""
    try:
        return read_file(folder / "boot-id") == boot_id.encode()
    except FileNotFoundError:
        return False
    except (OSError, NotAFileError) as error:  # marks of an unknown boot say nothing
        log.warning("the boot ID of the marks cannot be read: %s", error)
        return False


def note_boot(folder: Path, boot_id: str) -> None:
    """Note that all marks are of this boot. Raises OSError."""
    if not marks_are_of(folder, boot_id):
        write_file(folder / "boot-id", boot_id.encode(), folder / "boot-id.new")
