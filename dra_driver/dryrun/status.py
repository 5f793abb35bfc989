# SPDX-License-Identifier: Apache-2.0
"""The exit statuses of fit, gangs, lint, migrate, upgrade and cel, and the notes about what was not evaluated.

0 means that everything was evaluated and fits (or has no finding), 1 that something does not fit, 2 that the input is
wrong or cannot be read, and 3 that something was not evaluated, or that its verdict depends on something unknown. 2 and
1 win over 3.

Every Note raises the status to 3. A note belongs to the value in which the fact is known, and `Answer.unknown` collects
the notes of all of these:

- `Verdict.unknown` (texts, because the demand is the subject): the verdict on one demand may be another one
- `Found.unknown` and `Source.unknown`: the nodes, slices and other objects of the place are not fully known
- `Input.unknown`: an object of the documents was not evaluated, or not as a whole

A fact that is worth saying and changes no decision belongs to `notes` or `assumptions` of these values instead: they
leave the status as it is. Errors about single objects are Notes, too (`Input.errors`): each raises the status to 2, and
the other objects get their answers nevertheless.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..process.command import InputError


class ExitStatus(enum.IntEnum):
    """The exit status of a command that answers a question."""

    FITS = 0
    DOES_NOT_FIT = 1
    WRONG_INPUT = 2
    UNKNOWN = 3

    @staticmethod
    def of(*, fits: bool, errors: bool = False, unknown: bool = False) -> "ExitStatus":
        """The status, given whether all that was evaluated fits, and whether there are errors and notes."""
        if errors:
            return ExitStatus.WRONG_INPUT
        if not fits:
            return ExitStatus.DOES_NOT_FIT
        return ExitStatus.UNKNOWN if unknown else ExitStatus.FITS


@dataclass(frozen=True, slots=True)
class Note:
    """An unknown fact about `subject`, which is an object (`RayCluster team-a/train`), a demand, or empty for all
    answers. `file`, `line` and `column` (from 1; 0 if unknown) are its place.
    """

    subject: str
    text: str
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = ":".join((self.file, *(str(number) for number in (self.line, self.column) if number)))
        return ": ".join(filter(None, (place, self.subject, self.text)))

    def document(self) -> dict[str, Any]:
        """The note as in JSON. Unknown values are None."""
        return {
            "object": self.subject or None,
            "text": self.text,
            "file": self.file or None,
            "line": self.line or None,
            "column": self.column or None,
        }


def documents_of(notes: Iterable[Note]) -> list[dict[str, Any]]:
    """The notes as in JSON."""
    return [note.document() for note in notes]


class NotesError(InputError):
    """Input that cannot be used, with a note about each of its mistakes."""

    def __init__(self, *notes: Note) -> None:
        self.notes = notes
        super().__init__("\n".join(map(str, notes)))
