# SPDX-License-Identifier: Apache-2.0
"""The record files of claims with GPUs. `files` describes them."""

from pathlib import Path
from typing import Final

from .files import NewerVersionError, RecordError, RecordFiles, RecordFormat, Stamp, State, read_files
from .format import Record, decode, encode

__all__ = ["NewerVersionError", "Record", "RecordError", "Records", "Stamp", "State", "read_records"]

_FORMAT: Final = RecordFormat(encode, decode, lambda record: record.plan.claim)


class Records(RecordFiles[Record]):
    """The records in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _FORMAT)


def read_records(folder: Path) -> tuple[list[Record], dict[str, str]]:
    """The readable records, sorted by claim, and why others cannot be read. Changes nothing."""
    return read_files(Records(folder)) if folder.is_dir() else ([], {})
