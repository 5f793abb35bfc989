# SPDX-License-Identifier: Apache-2.0
"""The driver's folder on the node: the folder that the daemon mounts, and the domain that the node is in.

`domains/<UID>` exists as long as the claim of the domain's daemon. The daemon has it as /imexd, and reports there
whether it is ready. The file `domain` has the UID of the domain that the node is in: that of its prepared or waiting
channels. dra-controller publishes it with the node's channel, so that the scheduler keeps other domains away.
"""

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.domains.names import DOMAIN_FILE
from dra_driver.process.exposed import Trash
from dra_driver.process.files import make_folder, names_in, read_file, remove_file, write_file

log = logging.getLogger(__name__)

_MOST_REMOVED: Final = 10_000
"""How many names one call removes, because other claims wait meanwhile. Daemons decide how many there are."""


@dataclass(frozen=True, slots=True)
class DomainFolder:
    """The driver's folder at `path`. Callers that change it hold the lock of DOMAIN_KEY."""

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

    # The domain of the node

    def domain(self) -> str:
        """The UID of the domain that the node is in, or an empty text. Raises OSError."""
        try:
            return read_file(self.mark).decode(errors="replace").strip()
        except (FileNotFoundError, ValueError):  # ValueError: it is a folder, for example, and is replaced
            return ""

    def join(self, uid: str) -> None:
        """Note that the node is in this domain. Raises OSError."""
        if self.domain() != uid:
            write_file(self.mark, f"{uid}\n".encode(), self._temporary, 0o644)

    def leave(self) -> None:
        """Note that the node is in no domain. Raises OSError."""
        remove_file(self.mark)
        remove_file(self._temporary)  # of a process that was killed

    # The folders of daemons

    def of_domain(self, uid: str) -> Path:
        """The folder that the daemon of a domain shares with this plugin."""
        return self.domains / uid

    def existing(self) -> list[str]:
        """The names of the folders of domains. Raises OSError."""
        return sorted(names_in(self.domains))

    def make(self, uid: str) -> None:
        """Make the folder of a domain. Raises OSError."""
        make_folder(self.of_domain(uid))

    def remove(self, uid: str) -> None:
        """Take the folder of a domain away, and remove a part of what is in it. Raises OSError."""
        Trash(self._trash).take(self.of_domain(uid))
        self.empty_trash()

    def has_trash(self) -> bool:
        """Whether `empty_trash` has something to do."""
        return self._trash.exists()

    def empty_trash(self) -> str:
        """Remove some of what folders of domains had. Returns why something of it stays. Empty if nothing does."""
        problem = ""
        try:
            if not Trash(self._trash).empty(_MOST_REMOVED):
                problem = "the folders of ComputeDomains have many files, and are removed bit by bit"
        except OSError as error:
            problem = f"the folder of a ComputeDomain cannot be removed yet: {error}"
        if problem:
            log.warning("%s", problem)
        for folder in (self.domains, self._trash):
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()
        return problem
