# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with MPS."""

from ..errors import DriverError


class MpsError(DriverError):
    """A control daemon cannot be started, configured or ended; the text says why."""


class SupervisorAwayError(MpsError):
    """No dra-mps process answers on this node."""
