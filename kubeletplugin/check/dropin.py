# SPDX-License-Identifier: Apache-2.0
"""The additional configuration file that --fix writes, as a whole or not at all.

The file names its author and how to undo it. A foreign file is not changed.
"""

import contextlib
import os
from dataclasses import dataclass
from typing import Final

from dra_driver.process.files import write_file

from ..errors import FixError
from .host import Host, Unreadable

_MARK: Final = "# Written by `dra-kubeletplugin check --fix`."


@dataclass(frozen=True, slots=True)
class DropIn:
    """A new file at `path` of the host with the settings `body`. `restart` is the command after which they count."""

    path: str
    body: str
    restart: str

    @property
    def text(self) -> str:
        """The content of the file."""
        return f"{_MARK}\n# To undo: rm {self.path} && {self.restart}\n{self.body}"

    @property
    def summary(self) -> str:
        """The settings on one line."""
        return "; ".join(line.strip() for line in self.body.splitlines() if line.strip())


def write(host: Host, drop_in: DropIn) -> None:
    """Write the file. Raises FixError."""
    existing = host.read(drop_in.path)
    if isinstance(existing, Unreadable):
        raise FixError(str(existing))
    if existing is not None and not existing.startswith(_MARK):
        raise FixError(f"{drop_in.path} exists and was not written by this command: remove or rename it")
    target = host.here(drop_in.path)
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, drop_in.text.encode(), temporary, 0o644)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = f"{error.strerror or error} (a container needs the folder mounted read-write)"
        raise FixError(f"{drop_in.path} cannot be written: {reason}") from None


def remove(host: Host, drop_in: DropIn, *, with_folder: bool) -> None:
    """Remove the file that was written, and its folder, if that was made for it. Raises FixError."""
    target = host.here(drop_in.path)
    try:
        target.unlink(missing_ok=True)
        if with_folder:
            target.parent.rmdir()
    except OSError as error:
        raise FixError(f"{drop_in.path} has no effect and cannot be removed: {error.strerror}") from None
