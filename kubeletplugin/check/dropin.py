# SPDX-License-Identifier: Apache-2.0
"""What --fix does: it writes one new file for the container runtime, as a whole or not at all.

Existing files of others are never changed. The new file names its author and how to undo it. The next run writes the
same file again, or nothing.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import DriverError

from .host import Host, Unreadable

_MARK = "# Written by `dra-kubeletplugin check --fix`."


class FixError(DriverError):
    """The file cannot be written; the text says why."""


@dataclass(frozen=True, slots=True)
class DropIn:
    """A file that would mend the configuration of `service` (its systemd unit), at `path` of the host."""

    path: str
    body: str
    service: str

    @property
    def text(self) -> str:
        """The whole file."""
        undo = f"# To undo: rm {self.path} && systemctl restart {self.service}"
        return f"{_MARK}\n{undo}\n{self.body}"

    @property
    def next_step(self) -> str:
        """What is left to do by hand."""
        return (
            f"`systemctl restart {self.service}` on the node, which leaves running containers alone; to undo, `rm"
            f" {self.path}` and restart it again"
        )


def write(host: Host, drop_in: DropIn) -> bool:
    """Write the file; False when it is there already. Raises FixError."""
    existing = host.read(drop_in.path)
    if isinstance(existing, Unreadable):
        raise FixError(str(existing))
    if existing == drop_in.text:
        return False
    if existing is not None and not existing.startswith(_MARK):
        raise FixError(f"{drop_in.path} exists and was not written by this command: remove or rename it")
    target = host.here(drop_in.path)
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(temporary, target, drop_in.text)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = f"{error.strerror or error} (a container needs the folder mounted read-write)"
        raise FixError(f"{drop_in.path} cannot be written: {reason}") from None
    return True


def _write_whole(temporary: Path, target: Path, text: str) -> None:
    with temporary.open("x", encoding="utf-8") as stream:
        os.fchmod(stream.fileno(), 0o644)  # whatever the umask
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
