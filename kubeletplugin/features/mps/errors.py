# SPDX-License-Identifier: Apache-2.0
"""The errors of MPS."""

from dra_driver.process.mps import MpsError


class SupervisorAwayError(MpsError):
    """No dra-mps process answers on this node."""


class ServerGoneError(MpsError):
    """The control daemon answers, and has no server of the group any more."""
