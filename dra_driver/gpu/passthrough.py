# SPDX-License-Identifier: Apache-2.0
"""The GPUs that this driver has given to virtual machines, as files that all processes of the node read.

A mark is written before the first function of a GPU is taken from its driver, and removed after all of them are back.
It has the driver of each function, and everything else that must be restored. So a GPU can be brought back after a kill
at any point. A GPU with a mark is not lost, although NVML does not see it. A GPU that an administrator has bound to a
vfio driver has no mark, and is not changed.

The kernel does not take a GPU from NVIDIA's driver while a process has it open, and NVML opens all GPUs. So while a GPU
is being taken, this driver holds a lock (`letting_go`), and all sessions (`dra_driver.gpu.session`) end NVML and begin
it again only afterwards. Each session holds another lock while it uses NVML (`using`), so it is known when all of them
have ended it. The kernel ends the locks with their processes, so a process that is killed holds up nothing.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..process.files import make_folder
from .functions import PciFunction
from .marks import ValueMarks
from .ownership import VgpuMarks

log = logging.getLogger(__name__)

_LOCK, _USERS = "letting-go", "using-nvml"

_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class VfioMark:
    """A GPU that was taken from its driver for a claim: its PCI address, and its UUID (its address if it is unknown).

    `functions` are all functions of its slot, as they were before. `persistence` is the persistence mode before, or
    None if it was not read. `stuck` tells that the kernel does not finish a change of the GPU, and is empty otherwise.
    """

    address: str
    gpu_uuid: str
    functions: tuple[PciFunction, ...]
    persistence: bool | None = None
    stuck: str = ""


class VfioMarks(ValueMarks[str, VfioMark]):
    """The marks of GPUs in `folder`, by PCI address. `vgpus` are the marks of vGPUs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.vgpus = VgpuMarks(folder / "vgpus")

    def stick(self, address: str, text: str) -> None:
        """Note that the kernel does not finish a change of the GPU. An empty text ends that."""
        mark = self.get(address)
        if mark is not None and mark.stuck != text:
            self.set(replace(mark, stuck=text))

    @contextlib.contextmanager
    def letting_go(self, seconds: float) -> Iterator[None]:
        """Let no process of this driver use NVML inside of the context. Waits until none does, at most `seconds`.
        Several GPUs may be taken at the same time.
        """
        make_folder(self._folder)
        (self._folder / _LOCK).touch()
        with self._sharing(_LOCK):
            deadline = time.monotonic() + seconds
            while self._is_shared(_USERS) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            yield

    def has_let_go(self) -> bool:
        """Whether a process has been inside of `letting_go` since the folder was made. Costs one system call."""
        return os.path.lexists(self._prefix + _LOCK)

    def must_let_go(self) -> bool:
        """Whether a process is inside of `letting_go`. Costs a few system calls."""
        return self._is_shared(_LOCK)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """The context in which a session uses NVML. The controller may not write here. If it is the first process on
        the node, it has no lock until it initializes NVML again. Then `letting_go` does not wait for it, and the GPU is
        refused until the controller has closed its device nodes.
        """
        try:
            make_folder(self._folder)
            (self._folder / _USERS).touch()
        except OSError as error:
            log.debug("the folder of marks is read-only: %s", error)
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(self._sharing(_USERS))
            yield

    @contextlib.contextmanager
    def _sharing(self, name: str) -> Iterator[None]:
        descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _is_shared(self, name: str) -> bool:
        try:
            descriptor = os.open(self._prefix + name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _key(self, mark: VfioMark) -> str:
        return mark.address

    def _parse(self, stem: str) -> str | None:
        return stem

    def _encode(self, mark: VfioMark) -> object:
        value = asdict(mark)
        value["gpu"] = value.pop("gpu_uuid")
        return value

    def _decode(self, key: str, value: Any) -> VfioMark:
        functions = tuple(PciFunction(each["address"], each["driver"], each["override"]) for each in value["functions"])
        return VfioMark(value["address"], value["gpu"], functions, value["persistence"], value["stuck"])
