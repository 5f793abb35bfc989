# SPDX-License-Identifier: Apache-2.0
"""The driver's folder on the node: the records, the folders that daemons mount, and the domain that the node is in.

`domains/<UID>` exists as long as a claim of this domain is recorded. Its daemon has it as /imexd, and reports there
whether it is ready. The file `domain` has the UID of the domain that the node is in: that of its prepared or waiting
channels. dra-controller publishes it with the node's channel, so that the scheduler keeps other domains away.

Both follow from the records, and are made right after every change of a record, and at the start.
"""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.domains.names import DOMAIN_FILE
from dra_driver.process.exposed import Trash
from dra_driver.process.files import make_folder, names_in, read_file, remove_file, write_file

from .records import DomainRecord

log = logging.getLogger(__name__)

_MOST_REMOVED: Final = 10_000
"""How many names one call removes, because other claims wait meanwhile. Daemons decide how many there are."""


@dataclass(frozen=True, slots=True)
class DomainFolder:
    """The driver's folder at `path`."""

    path: Path

    @property
    def records(self) -> Path:
        """The folder of the claims' records."""
        return self.path / "claims"

    @property
    def domains(self) -> Path:
        """The folder of the domains' folders."""
        return self.path / "domains"

    @property
    def mark(self) -> Path:
        """The file with the UID of the domain that the node is in."""
        return self.path / DOMAIN_FILE

    @property
    def _temporary(self) -> Path:
        return self.path / f".{DOMAIN_FILE}.new"

    @property
    def _trash(self) -> Path:
        return self.path / ".trash"

    def of_domain(self, uid: str) -> Path:
        """The folder that the daemon of a domain shares with this plugin."""
        return self.domains / uid

    def domain(self) -> str:
        """The UID of the domain that the node is in, or an empty text. Raises OSError."""
        try:
            return read_file(self.mark).decode(errors="replace").strip()
        except (FileNotFoundError, ValueError):  # ValueError: it is a folder, for example, and is replaced
            return ""

    def remove_half_written(self) -> None:
        """Remove the incomplete mark of a process that was killed. No other process may be writing it."""
        remove_file(self._temporary)

    def follow(self, records: Sequence[DomainRecord], *, keep_folders: bool) -> None:
        """Make the folders and the mark what the records of all claims say. With `keep_folders`, no folder is removed,
        because some records cannot be read. Raises OSError.
        """
        joined = {one.plan.domain for one in records if one.plan.joins}
        current = self.domain()
        if current not in joined:
            wanted = min(joined, default="")
            if wanted:
                write_file(self.mark, f"{wanted}\n".encode(), self._temporary, 0o644)
            else:
                remove_file(self.mark)
        for uid in {one.plan.domain for one in records if one.plan.is_daemon}:
            make_folder(self.of_domain(uid))
        if not keep_folders:
            self._remove_others({one.plan.domain for one in records})

    def _remove_others(self, needed: set[str]) -> None:
        """Remove the folders of domains without claims. What cannot be removed is tried again later."""
        trash = Trash(self._trash)
        try:
            for name in names_in(self.domains):
                if name not in needed:
                    trash.take(self.domains / name)
            if not trash.empty(_MOST_REMOVED):
                log.warning("the folders of ComputeDomains have many files, and are removed bit by bit")
        except OSError as error:
            log.warning("the folder of a ComputeDomain cannot be removed yet: %s", error)
        for folder in (self.domains, self._trash):
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()
