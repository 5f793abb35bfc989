# SPDX-License-Identifier: Apache-2.0
"""The plugin of a node as a process that is killed at a chosen point of a call and started again, in a moment."""

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import grpc

from tests.support.nodes import make_node
from tests.support.plugin import POOL, Plugin
from tests.support.waiting import wait_for

from .census import Census, grown
from .picture import Picture, picture
from .points import Dial
from .scenarios import restrict

NODE = Path(__file__).with_name("node.yaml")
POLICY = "gpus:\n- {mig: dynamic}\n"


class Nursery:
    """The process that the plugins are forked from."""

    def __init__(self, server: "subprocess.Popen[bytes]") -> None:
        self._orders, self._answers = cast(IO[bytes], server.stdin), cast(IO[bytes], server.stdout)

    def start(self, **order: Any) -> "Forked":
        """One more plugin."""
        self._orders.write(json.dumps(order).encode() + b"\n")
        self._orders.flush()
        return Forked(int(self._answers.readline()))


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    """A nursery; its processes end with it."""
    command = [sys.executable, "-m", "tests.faults.child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        yield Nursery(server)
        cast(IO[bytes], server.stdin).close()


class Forked:
    """A process that somebody else started: what Plugin needs of a Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """0 when it has ended, however; None while it runs."""
        return 0 if self._ended(0.0) else None

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for its end."""
        assert self._ended(timeout), f"process {self.pid} does not end"
        return 0

    def kill(self) -> None:
        """End it."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def _ended(self, seconds: float) -> bool:
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def __del__(self) -> None:
        os.close(self._descriptor)


class DoomedPlugin(Plugin):
    """A plugin whose processes count points. Any GPU's MIG mode may be switched for claims."""

    def __init__(self, nursery: Nursery, folder: Path, kubeconfig: Path, *flags: str) -> None:
        hardware = make_node(folder / "node", str(NODE), POOL)
        restrict(hardware.node)
        policy = folder / "policy.yaml"
        policy.write_text(POLICY, encoding="utf-8")
        super().__init__(folder, kubeconfig, f"--policy-file={policy}", *flags, hardware=hardware)
        self._counts_starts = False
        self._nursery = nursery
        self._census_file = folder / "census"
        self._dial_file = folder / "dial"
        self._dial_file.write_bytes(bytes(mmap.PAGESIZE))
        with self._dial_file.open("r+b") as file:
            self.dial = Dial.from_buffer(mmap.mmap(file.fileno(), 0))

    def spawn(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """One more process of this node."""
        where = [f"--{name}={value}" for name, value in self.where.items()]
        arguments = (f"--node-name={POOL}", *where, f"--kubeconfig={self.kubeconfig}", *self.flags, *arguments)
        self._log_file.touch()
        process = self._nursery.start(
            dial=str(self._dial_file),
            log=str(self._log_file),
            watch=[str(self.state), str(self.cdi)],
            starts=self._counts_starts,
            census=str(self._census_file),
            arguments=arguments,
        )
        return cast("subprocess.Popen[bytes]", process)

    def struck(self, verb: str, claim: Any) -> str:
        """Make a call at one of whose points the process ends; where, or nothing when it does not."""
        try:
            answer = self.call(verb, [claim], "v1")(timeout=60)
        except grpc.RpcError:
            return self.end_of_process()
        self.dial.rest()
        assert answer.claims[claim.uid].error == ""
        return ""

    def start_struck(self, point: int) -> str:
        """Start, and end at a point of that; where, or nothing when it has not so many."""
        self.dial.arm(point)
        self._starts += 1
        self._counts_starts = True
        self.process = self.spawn()
        self._counts_starts = False
        wait_for(lambda: "GPUs are ready" in self.log or self.ended, "the start")
        if self.ended:
            return self.end_of_process()
        self.dial.rest()
        return ""

    def end_of_process(self) -> str:
        """The process has killed itself, or will at once: where."""
        assert self.process is not None
        self.process.wait()
        self.dial.rest()
        self.kill()
        return self.log.rpartition("killed: ")[2].strip()

    def census(self) -> Census:
        """What the process holds on to."""
        assert self.process is not None
        self._census_file.unlink(missing_ok=True)
        os.kill(self.process.pid, signal.SIGUSR1)
        wait_for(self._census_file.exists, "the census")
        found: Census = json.loads(self._census_file.read_bytes())
        return found

    def picture(self) -> Picture:
        """All that there is on the node."""
        return picture(self.node, self.state, self.cdi)


def require_as_before(plugin: DoomedPlugin, before: Census, **more: int) -> None:
    """Wait until the process holds on to no more than before; what it has more of is named. For `more` see `grown`."""
    found: dict[str, tuple[int, int]] = {}

    def is_as_before() -> bool:
        found.clear()
        found.update(grown(before, plugin.census(), **more))
        return not found

    try:
        wait_for(is_as_before, "the process to be as before", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}, there is more of (before, now): {found}") from None


@contextlib.contextmanager
def doomed_plugin(nursery: Nursery, kubeconfig: Path, *flags: str) -> Iterator[DoomedPlugin]:
    """A node whose plugin is not started yet; whatever runs at the end is killed."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        plugin = DoomedPlugin(nursery, Path(name), kubeconfig, *flags)
        try:
            yield plugin
        finally:
            plugin.kill()
