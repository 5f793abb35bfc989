# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the plugin and of dra-mps.

    DriverError
        PrepareError
            ObsoleteClaimError
                ClaimGoneError
            NotMadeError
            WriteError
            StuckError
        RecordError
        NewerVersionError
        StoppedError
        AnotherInstanceError
        SocketError
        NoDriverError
        DriverFilesError
        SpecError
        LimitError
            LaterError
        FixError
        RuntimeAnswerError
        MpsError
            SupervisorAwayError
            ServerGoneError
        ProgramError
            UnsupportedError

DriverError, MpsError and ProgramError are those of dra_driver. `reports.devicestatus` has one that is an
ApiError, because dra-mps loads this file and no client of the API server.
"""

from dra_driver.errors import DriverError, MpsError, ProgramError


class PrepareError(DriverError):
    """A claim cannot be prepared. The text is shown in the pod's events: it tells what is wrong and what to do."""


class ObsoleteClaimError(PrepareError):
    """The claim, or what it is for, is gone or not valid. Repeating the call does not help."""


class ClaimGoneError(ObsoleteClaimError):
    """The API server no longer has this claim."""


class NotMadeError(PrepareError):
    """A GPU instance could not be created, and it is certain that none exists."""


class WriteError(PrepareError):
    """The kernel refused a write with the errno `code`. EINTR: the write was interrupted and may have had an effect."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class StuckError(PrepareError):
    """A write has not returned."""


class RecordError(DriverError):
    """A claim cannot be recorded. The text tells why."""


class NewerVersionError(DriverError):
    """The record has a version that this plugin does not support."""


class StoppedError(DriverError):
    """Work was stopped between two steps. The text tells why. Finished steps stay recorded."""


class AnotherInstanceError(DriverError):
    """This process cannot run at the same time as another process. The text tells how that was found out."""


class SocketError(DriverError):
    """A socket cannot be served. The text names it."""


class NoDriverError(DriverError):
    """The GPUs cannot be used at the moment. The text has NVML's error, or tells what else is missing."""


class DriverFilesError(DriverError):
    """A file of the NVIDIA driver that every container needs is missing."""


class SpecError(DriverError, ValueError):
    """A runtime would not load the spec. `source` names it."""

    def __init__(self, source: str, *problems: str) -> None:
        super().__init__(f"{source}: {'; '.join(problems)}")


class LimitError(DriverError):
    """A limit cannot be set, and the container must not start. The text is shown in the pod's events."""


class LaterError(LimitError):
    """A limit cannot be set at the moment. The hook program tries again."""


class FixError(DriverError):
    """The file cannot be written. The text tells why."""


class RuntimeAnswerError(DriverError):
    """The container runtime does not tell its configuration. The text tells why."""


class SupervisorAwayError(MpsError):
    """No dra-mps process answers on this node."""


class ServerGoneError(MpsError):
    """The control daemon answers, and has no server of the group any more."""


class UnsupportedError(ProgramError):
    """The GPU does not have this setting."""
