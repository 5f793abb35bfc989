# SPDX-License-Identifier: Apache-2.0
"""The writes to sysfs by which a GPU goes to a virtual machine and comes back: the plugin is killed at one of them, one
of them fails, or does not return. Afterwards every function is where it was, once the claim is unprepared.

All writes are struck with FAULTS_EVERY=1, else a share of them.
"""

import contextlib
import errno
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.policy.parse import parse_policy
from dra_driver.kube.api import ApiClient
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.errors import NoDriverError, PrepareError, StoppedError
from tests.kubeletplugin.inside import QUICK, ApiServer
from tests.kubeletplugin.inside import Plugin as InsidePlugin
from tests.support.fuse import needs_fuse
from tests.support.kernel import AUDIO, LOAD, Function, Kernel, Picture
from tests.support.nodes import make_node
from tests.support.plugin import POOL, Plugin, stored_claim
from tests.support.waiting import wait_for

from .share import patiently, points

pytestmark = [needs_fuse]

NODE = Path(__file__).with_name("node.yaml")
DEVICE = "gpu-vfio-0"
OPPOSITE = {"prepare": "unprepare", "unprepare": "prepare"}
ONLY = "gpus: [{passthrough: only}]"
A_GPU_OR_GROUP = pytest.mark.parametrize("others", [(), (2,)], ids=["a GPU", "a group"])
"""The GPUs, by index, that share the IOMMU group of the first."""


@contextmanager
def a_kernel(root: Path, others: tuple[int, ...] = ()) -> Iterator[Kernel]:
    """The first GPU of the node has an audio function, and the `others` are in its group."""
    kernel = Kernel(root)
    first = kernel.gpus[0]
    kernel.add(Function(f"{first[:-1]}1", "0x040300", AUDIO), kernel.group(first))
    for index in others:
        kernel.join(kernel.gpus[index], kernel.group(first))
    with kernel.running():
        yield kernel


class Struck:
    """Strikes the write with this number, once."""

    def __init__(self, kernel: Kernel, point: int) -> None:
        self.where = ""
        self._left = point
        kernel.strike = self._write

    def _write(self, _number: int, path: str, text: str) -> None:
        if path == LOAD:
            return
        self._left -= 1
        if self._left == -1:
            self.where = f"{path} {text}"
            self.strike()

    def strike(self) -> None:
        """What happens before the write."""


class Killed(Struck):
    """The plugin is killed; the write is made or not."""

    def __init__(self, kernel: Kernel, point: int, plugin: Plugin, made: bool) -> None:
        super().__init__(kernel, point)
        assert plugin.process is not None
        self._process = plugin.process.pid
        self._made = made

    def strike(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # the test may have ended it already
            os.kill(self._process, signal.SIGKILL)
        if not self._made:
            raise OSError(errno.EINTR, "")


class Failed(Struck):
    """The write fails."""

    def strike(self) -> None:
        raise OSError(errno.EBUSY, "")


class Hung(Struck):
    """The write does not return until it is released."""

    def __init__(self, kernel: Kernel, point: int) -> None:
        super().__init__(kernel, point)
        self.released = threading.Event()

    def strike(self) -> None:
        self.released.wait()


@patiently
@pytest.mark.parametrize("made", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("verb", OPPOSITE)
@A_GPU_OR_GROUP
def test_a_plugin_that_is_killed_at_a_write_brings_everything_back(
    kubeconfig: Path, client: ApiClient, others: tuple[int, ...], verb: str, made: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        hardware = make_node(Path(name) / "node", str(NODE), POOL)
        policy = Path(name) / "policy.yaml"
        policy.write_text(ONLY)
        with a_kernel(Path(name) / "node", others) as kernel:
            plugin = Plugin(Path(name), kubeconfig, f"--policy-file={policy}", hardware=hardware).start()
            claim, before = stored_claim(client, DEVICE), kernel.picture()
            bring(plugin, claim, "prepare")
            bound = kernel.picture()
            assert bound != before
            try:
                first = {"prepare": 0, "unprepare": 1}[verb] + 2 * made
                for point in points(first, 9 if others else 6):
                    bring(plugin, claim, OPPOSITE[verb])
                    where = kill_at(kernel, plugin, claim, verb, point, made)
                    if not where:
                        break
                    plugin.start()
                    bring(plugin, claim, verb if point % 2 else OPPOSITE[verb])
                    bring(plugin, claim, "prepare")
                    assert kernel.picture() == bound, where
                    bring(plugin, claim, "unprepare")
                    require_everything_back(kernel, before, plugin.state, where)
            finally:
                plugin.kill()


def bring(plugin: Plugin, claim: object, verb: str) -> None:
    """kubelet repeats a call until it succeeds."""

    def done() -> bool:
        if verb == "prepare":
            return not plugin.prepare(claim)[claim.uid].error  # type: ignore[attr-defined]
        return not plugin.unprepare(claim)[claim.uid]  # type: ignore[attr-defined]

    wait_for(done, f"{verb} to succeed")


def kill_at(kernel: Kernel, plugin: Plugin, claim: object, verb: str, point: int, made: bool) -> str:
    """Kill the plugin at a write of a call. Which write it was, or nothing if the call has not so many. kubelet repeats
    a call that fails before, because GPUs come and go.
    """
    struck = Killed(kernel, point, plugin, made)

    def is_struck_or_done() -> bool:
        call = plugin.begin(verb.capitalize(), claim)
        wait_for(lambda: struck.where or call.done(), "the kill, or an answer")
        return bool(struck.where) or not call.result().claims[claim.uid].error  # type: ignore[attr-defined]

    wait_for(is_struck_or_done, f"the kill, or {verb} to succeed")
    if struck.where:
        plugin.kill()
    kernel.strike = lambda *_: None
    return struck.where


@patiently
@pytest.mark.parametrize("fault", [Failed, Hung])
@pytest.mark.parametrize("verb", OPPOSITE)
@A_GPU_OR_GROUP
def test_a_write_that_fails_or_hangs_changes_nothing_in_the_end(
    tmp_path: Path, others: tuple[int, ...], verb: str, fault: type[Struck]
) -> None:
    make_node(tmp_path / "node", str(NODE))
    api, policy = ApiServer(), parse_policy(ONLY)
    with a_kernel(tmp_path / "node", others) as kernel:
        times = replace(QUICK, write=2.0) if fault is Hung else QUICK
        plugin = InsidePlugin(tmp_path, api, hardware=str(NODE), times=times, policy=policy)
        claim, before = api.add([DEVICE]), kernel.picture()
        for point in points(0, 14 if others else 8):
            settle(plugin, claim, OPPOSITE[verb])
            struck = fault(kernel, point)
            error = attempt_until_struck(plugin, claim, verb, struck)
            if not struck.where:
                break
            assert error
            if isinstance(struck, Hung):
                assert "does not finish" in error
                assert any(mark.stuck for mark in VfioMarks(tmp_path / "vfio").all())
                struck.released.set()
            settle(plugin, claim, "unprepare")
            require_everything_back(kernel, before, tmp_path, struck.where)
        plugin.stop()


def attempt_until_struck(plugin: InsidePlugin, claim: ClaimRef, verb: str, struck: Struck) -> str:
    """The error of the call whose write was struck, or nothing if the call succeeds. The GPUs may have come and gone
    while the claim was planned, and then kubelet repeats its call before anything is written.
    """
    errors = [""]

    def is_struck_or_done() -> bool:
        errors.append(attempt(plugin, claim, verb))
        return bool(struck.where) or not errors[-1]

    wait_for(is_struck_or_done, "a write, or success")
    return errors[-1]


def settle(plugin: InsidePlugin, claim: ClaimRef, verb: str) -> None:
    """kubelet repeats a call until it succeeds."""
    wait_for(lambda: not attempt(plugin, claim, verb), f"{verb} to succeed")


def attempt(plugin: InsidePlugin, claim: ClaimRef, verb: str) -> str:
    """Make a call. Returns its error."""
    try:
        getattr(plugin.engine, verb)(claim)
    except (PrepareError, StoppedError, NoDriverError) as error:
        return str(error)
    return ""


def require_everything_back(kernel: Kernel, before: Picture, folder: Path, where: str) -> None:
    """Nothing of a claim is left."""
    wait_for(lambda: kernel.picture() == before, f"the functions after {where}")
    wait_for(lambda: not VfioMarks(folder / "vfio").all(), f"no marks after {where}")
