# SPDX-License-Identifier: Apache-2.0
"""The exceptions of dra_driver.

    DriverError
        ParseError, NotAFileError, OutputError
        ProgramError
            TimeLimitError
        MpsError
        QuantityError
        PolicyError, UnenforceableError, ImexFilesError, DescriptionError
        UnrepresentableError, NodeSelectorError
        NotPlacedError, ImexError
        SandboxError, FolderInUseError, DemoError

These are next to the data that they carry:

    DriverError
        kube.resource.codec: DecodeError
            config: ConfigError
        kube.api.errors: ConnectionConfigError
        kube.api.errors: ApiError (UnreachableError, StatusError (NotFoundError, ConflictError, GoneError))
        gpu.nvml: NvmlError
            gpu.threads: HungError
            gpu.session: LettingGoError
        gpu.fabric: FabricError
        scheduler.allocator: AllocationError
        scheduler.cel.errors: CelError (CompileError, EvaluationError)
    click.ClickException
        process.command: UserError
            InputError
                dryrun.status: NotesError
                    dryrun.documents: DocumentError

The API server and the kubelet of the sandbox answer with errors of their protocols, which are not DriverErrors.
"""


class DriverError(Exception):
    """An expected error. Its text says what failed, where, and what to do.

    Packages have subclasses for errors that their callers handle differently. Any other exception is a defect of the
    project, and ends only the work on one claim, GPU, slice or file (see `dra_driver.process.containment`).
    """


class ParseError(DriverError, ValueError):
    """The text is invalid. `line` and `column` count from 1. The message is `LINE:COLUMN: problem` in one line."""

    def __init__(self, problem: str, line: int = 1, column: int = 1) -> None:
        self.problem = " ".join(problem.split())
        self.line = line
        self.column = column
        super().__init__(f"{line}:{column}: {self.problem}")


class NotAFileError(DriverError, ValueError):
    """The path is not a regular file."""


class ProgramError(DriverError):
    """A program could not be started, did not end in time, or printed too much."""


class TimeLimitError(ProgramError):
    """A program did not end in time."""


class OutputError(DriverError):
    """Standard output cannot be written. `error` is the reason.

    It is not an OSError, because click and rich end the process for an OSError of a closed pipe, and commands handle an
    OSError as an error of one of their files.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.error = error


class MpsError(DriverError):
    """A control daemon cannot be started, configured or ended. The text has the reason."""


class QuantityError(DriverError, ValueError):
    """The text is not a quantity."""


class PolicyError(DriverError, ValueError):
    """The policy cannot be used. The text names the file and the field, and what is allowed."""


class UnenforceableError(DriverError):
    """The shares of a device cannot be enforced as the policy says. The text tells why."""


class ImexFilesError(DriverError):
    """A file of the NVIDIA driver in /proc cannot be read. The text names it."""


class DescriptionError(DriverError, ValueError):
    """The description of a simulated node cannot be used. The text has the place and the reason."""


class UnrepresentableError(DriverError):
    """A request cannot be rounded in the arithmetic of the range. `capacity` names the capacity."""

    def __init__(self, capacity: str, text: str) -> None:
        super().__init__(text)
        self.capacity = capacity


class NodeSelectorError(DriverError, ValueError):
    """The node selector is not one that Kubernetes can evaluate."""


class NotPlacedError(DriverError):
    """This daemon has no place in its domain yet. The text says what it waits for."""


class ImexError(DriverError):
    """nvidia-imex cannot be started, or has ended. The text has the reason, and what to do."""


class SandboxError(DriverError):
    """A part of the sandbox did not start. The text names it and has the last line of its log."""


class FolderInUseError(DriverError, OSError):
    """Another sandbox uses the folder. The text has the id of its process."""


class DemoError(DriverError):
    """A step of the demo did not have the expected result. The text says which one."""
