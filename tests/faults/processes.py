# SPDX-License-Identifier: Apache-2.0
"""The plugin of a node as a process that is killed at a chosen point of a call and started again, in a moment."""

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from tests.support.mps import MpsProcess
from tests.support.nodes import make_node
from tests.support.plugin import POOL, Plugin
from tests.support.preloaded import start
from tests.support.waiting import wait_for

from .nodestate import NodeState, node_state
from .points import Trigger
from .resources import TOLERANCE, ResourceCounts, Tolerance, grown
from .scenarios import restrict

NODE = Path(__file__).with_name("node.yaml")
POLICY = "gpus:\n- {mig: dynamic}\n"
_REPEATED = ("kubelet tries again", "the NVIDIA driver is not ready")
"""Errors of a call that finds NVML being initialized again, because a GPU was taken or has come back."""


class KillablePlugin(Plugin):
    """A plugin whose processes count points. Any GPU's MIG mode may be switched for claims.

    An `impatient` one soon gives up a call of NVML that hangs. Without such calls, it must not: a busy machine takes
    seconds for any call.
    """

    def __init__(self, folder: Path, kubeconfig: Path, *flags: str, node: str = "", impatient: bool = False) -> None:
        hardware = make_node(folder / "node", node or str(NODE), POOL)
        if not node:
            restrict(hardware.node)
        policy = folder / "policy.yaml"
        policy.write_text(POLICY, encoding="utf-8")
        super().__init__(folder, kubeconfig, f"--policy-file={policy}", *flags, hardware=hardware)
        self._counts_starts = False
        self._impatient = impatient
        self._mps: MpsProcess | None = None
        self._counts_file = folder / "counts"
        self._trigger_file = folder / "trigger"
        self._trigger_file.write_bytes(bytes(mmap.PAGESIZE))
        with self._trigger_file.open("r+b") as file:
            self.trigger = Trigger.from_buffer(mmap.mmap(file.fileno(), 0))

    @property
    def watched(self) -> tuple[Path, ...]:
        """The folders whose changes are points, beside that of the CDI specs."""
        return (self.state,)

    def start_mps(self) -> None:
        """Start dra-mps, which gets no fault. It ends with this object."""
        self._mps = MpsProcess(self.state, self.node, self.folder / "mps.log").start()

    def end_mps(self) -> None:
        """End dra-mps, if it was started."""
        if self._mps is not None:
            self._mps.stop()

    def spawn(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """One more process of this node."""
        where = [f"--{name}={value}" for name, value in self.where.items()]
        arguments = (f"--node-name={POOL}", *where, f"--kubeconfig={self.kubeconfig}", *self.flags, *arguments)
        order = {
            "trigger": str(self._trigger_file),
            "watch": [*map(str, self.watched), str(self.cdi)],
            "starts": self._counts_starts,
            "impatient": self._impatient,
            "counts": str(self._counts_file),
        }
        command = [sys.executable, "-m", "tests.faults.child", json.dumps(order), *arguments]
        with self._log_file.open("ab") as log:
            return start(command, stdout=log, stderr=log)

    def call_and_die(self, verb: str, claim: Any) -> str:
        """Make a call at one of whose points the process ends. Returns the point, or nothing if it does not end. The
        call is repeated, as kubelet does, if GPUs come and go meanwhile.
        """
        errors = [""]

        def is_answered() -> bool:
            errors.append(self.call(verb, [claim], "v1")(timeout=60).claims[claim.uid].error)
            return not any(text in errors[-1] for text in _REPEATED)

        try:
            wait_for(is_answered, f"an answer to {verb}")
        except grpc.RpcError:
            return self.end_of_process()
        if self.disarm():
            return self.end_of_process()
        assert errors[-1] == "", self.log
        return ""

    def start_and_die(self, point: int) -> str:
        """Start a process that ends at a point of its start. Returns the point, or nothing if it has fewer."""
        self.trigger.arm(point)
        self._starts += 1
        self._counts_starts = True
        self.process = self.spawn()
        self._counts_starts = False
        wait_for(lambda: "GPUs are ready" in self.log or self.ended, "the start")
        if self.ended or self.disarm():
            return self.end_of_process()
        return ""

    def disarm(self) -> bool:
        """Let the process not end any more. Returns whether it has reached its point: then it ends, perhaps only after
        it has answered.
        """
        return 0 <= self.trigger.point < self.trigger.disarm()

    def end_of_process(self) -> str:
        """Wait until the process has killed itself. Returns the point at which it did."""
        assert self.process is not None
        self.process.wait(60)
        self.trigger.disarm()
        self.kill()
        return self.log.rpartition("killed: ")[2].strip()

    def resource_counts(self) -> ResourceCounts:
        """The objects, threads and files of the process."""
        assert self.process is not None
        self._counts_file.unlink(missing_ok=True)
        os.kill(self.process.pid, signal.SIGUSR1)
        wait_for(self._counts_file.exists, "the resource counts")
        found: ResourceCounts = json.loads(self._counts_file.read_bytes())
        return found

    def node_state(self) -> NodeState:
        """All that there is on the node."""
        return node_state(self.node, self.state, self.cdi)


def require_as_before(
    count: Callable[[], ResourceCounts], before: ResourceCounts, tolerance: Tolerance = TOLERANCE
) -> None:
    """Wait until a process holds no more than before, within the tolerance. The error names what there is more of."""
    found: dict[str, tuple[int, int]] = {}

    def is_as_before() -> bool:
        found.clear()
        found.update(grown(before, count(), tolerance))
        return not found

    try:
        wait_for(is_as_before, "the process to be as before")
    except AssertionError as error:
        raise AssertionError(f"{error}, there is more of (before, now): {found}") from None


@contextlib.contextmanager
def killable_plugin(kubeconfig: Path, *flags: str, impatient: bool = False) -> Iterator[KillablePlugin]:
    """A node whose plugin is not started yet; whatever runs at the end is killed."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        plugin = KillablePlugin(Path(name), kubeconfig, *flags, impatient=impatient)
        try:
            yield plugin
        finally:
            plugin.kill()
            plugin.end_mps()
