# SPDX-License-Identifier: Apache-2.0
"""dra-mps and its daemons fail while a claim is prepared or unprepared: killed, stopped, or hanging at any moment.

The other tests have faults at the plugin's own points, whose scenarios have claims with MPS. Here the moment is when
NVIDIA's program is run for the n-th time, whoever runs it then: the daemon, the question whether it answers, a limit,
the end. Without FAULTS_EVERY=1 it is every other run.
"""

import itertools
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeletplugin.claims.boundary import EXPECTED_ERRORS
from kubeletplugin.claims.model import ClaimRef
from tests.kubeletplugin.inside import DYNAMIC, ApiServer, Plugin
from tests.support.claims import mps
from tests.support.mps import MpsProcess
from tests.support.waiting import wait_for

from .faultyclaim import QUICK
from .nodestate import NodeState, node_state
from .processes import NODE
from .share import points

SHARING = mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="1Gi")
DEVICES = {"2": "gpu-2", "mig": "gpu-1-mig-1g10gb-19-0", "3": "gpu-2"}
"""What is prepared, by the protocol or kind."""
MOST_RUNS = 12

COUNTING = """#!/bin/sh
n=$(cat {count} 2>/dev/null || echo 0)
echo $((n + 1)) > {count}
[ "$n" != "$(cat {point})" ] || {{ touch {reached}; while [ -e {reached} ]; do sleep 0.01; done; }}
exec {program} "$@"
"""


class Node:
    """A node on which a run of NVIDIA's program can be stopped at its start."""

    def __init__(self, root: Path, protocol: str) -> None:
        self.root = root
        self.api = ApiServer()
        self.plugin = Plugin(root, self.api, hardware=str(NODE), policy=DYNAMIC, settings=QUICK)
        if protocol == "3":
            self.plugin.node.load_driver("615.71.09")
            wait_for(lambda: self.plugin.has_driver() and self._driver() == "615.71.09", "the driver")
        program = self.plugin.node.driver_root / "usr/bin/nvidia-cuda-mps-control"
        real = program.with_name("real-mps-control")
        program.rename(real)
        self._point, self._count, self.reached = root / "point", root / "count", root / "reached"
        program.write_text(COUNTING.format(count=self._count, point=self._point, reached=self.reached, program=real))
        program.chmod(0o755)
        self.supervisor = MpsProcess(root, self.plugin.node, root / "mps.log").start()
        self.nothing = self.node_state()
        self.claim = self.api.add([DEVICES[protocol]], sharing=SHARING)
        self.plugin.engine.prepare(self.claim)
        self.prepared = self.node_state()
        self.plugin.engine.unprepare(self.claim)

    def _driver(self) -> str:
        return self.plugin.place.gpus().inventory.driver_version

    def node_state(self) -> NodeState:
        """All that there is."""
        return node_state(self.plugin.node, self.root, self.plugin.cdi)

    def stop_at(self, run: int) -> None:
        """The run with this number, from now on, stops at its start."""
        self.reached.unlink(missing_ok=True)
        self._count.unlink(missing_ok=True)
        self._point.write_text(str(run))

    def go_on(self) -> None:
        """No run stops any more, and one that did goes on."""
        self._point.write_text("-1")
        self.reached.unlink(missing_ok=True)

    def repeat(self, verb: Callable[[ClaimRef], object], wanted: NodeState) -> None:
        """kubelet repeats its call until it goes well."""

        def went_well() -> bool:
            try:
                verb(self.claim)
            except EXPECTED_ERRORS:
                return False
            return True

        wait_for(went_well, "the call")
        wait_for(lambda: self.node_state() == wanted, "the node")


@pytest.fixture(params=DEVICES)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="dra-", ignore_cleanup_errors=True) as name:  # short: sockets are in it
        made = Node(Path(name), request.param)
        yield made
        made.go_on()
        made.plugin.stop()
        made.supervisor.end()


@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
def test_the_supervisor_is_killed_at_any_run_of_the_program(node: Node, verb: str) -> None:
    engine = node.plugin.engine
    runs = 0
    for run in itertools.takewhile(lambda run: run < MOST_RUNS, points(0, 2)):
        if verb == "unprepare":
            node.repeat(engine.prepare, node.prepared)
        call = engine.prepare if verb == "prepare" else engine.unprepare
        node.stop_at(run)
        ended = threading.Event()

        def attempt(call: Callable[[ClaimRef], object] = call, ended: threading.Event = ended) -> None:
            try:
                call(node.claim)
            except EXPECTED_ERRORS as error:
                print(error)
            finally:
                ended.set()

        threading.Thread(target=attempt).start()
        wait_for(lambda ended=ended: ended.is_set() or node.reached.exists(), "the run or the end")  # type: ignore[misc]
        if not node.reached.exists():
            break
        runs += 1
        node.supervisor.kill()
        node.go_on()
        assert ended.wait(60)
        node.supervisor.start()
        if runs % 2:
            node.repeat(engine.prepare, node.prepared)
        node.repeat(engine.unprepare, node.nothing)
    print(f"{runs} runs")
    assert runs
    node.go_on()
    node.repeat(engine.unprepare, node.nothing)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemon_that_is_killed_or_stopped_leaves_nothing_after_unprepare(node: Node, number: signal.Signals) -> None:
    node.go_on()
    node.repeat(node.plugin.engine.prepare, node.prepared)
    for pid in node.supervisor.processes():
        os.kill(pid, number)
    node.repeat(node.plugin.engine.unprepare, node.nothing)
