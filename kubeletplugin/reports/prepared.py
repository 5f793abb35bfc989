# SPDX-License-Identifier: Apache-2.0
"""The prepared claims of the node, as their records tell."""

from collections.abc import Mapping
from pathlib import Path

from ..claims.files import RecordFiles
from ..claims.model import Driver, Record, State
from ..claims.records import read_records, record_format
from ..errors import NewerVersionError
from .devicestatus import JSON, DeviceKey, device_data, shares_of


class PreparedClaims:
    """The prepared claims of `driver`, whose records are in `folder`. They are read each time."""

    def __init__(self, folder: Path, driver: Driver) -> None:
        self._folder = folder
        self._driver = driver
        self._files = RecordFiles(folder, record_format(driver))

    def records(self) -> list[Record]:
        """The records of all prepared claims that can be read."""
        records, _ = read_records(self._folder, self._driver)
        return [record for record in records if record.state is State.PREPARED]

    def device_data(self, uid: str) -> Mapping[DeviceKey, JSON]:
        """The details of the devices of one claim. Empty if it is not prepared."""
        try:
            record = self._files.read(uid)
        except (OSError, ValueError, NewerVersionError):
            return {}  # unprepared meanwhile, or damaged, which the engine reports
        return device_data(record) if record.state is State.PREPARED else {}

    def types(self) -> list[str]:
        """The type of each device."""
        return [
            device.kind.attributes(record.found.get(device.name, {}))["type"]
            for record in self.records()
            for device in record.plan.devices
        ]

    def shares(self) -> list[Mapping[str, str]]:
        """Each share, for metrics."""
        return [share for record in self.records() for share in shares_of(record.plan)]
