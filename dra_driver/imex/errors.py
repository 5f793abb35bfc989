# SPDX-License-Identifier: Apache-2.0
"""The errors of the IMEX daemon."""

from ..errors import DriverError


class ImexError(DriverError):
    """nvidia-imex cannot be started, or has ended. The text has the reason, and what to do."""


class NotPlacedError(DriverError):
    """This daemon has no place in its domain yet. The text says what it waits for."""
