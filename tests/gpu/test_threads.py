# SPDX-License-Identifier: Apache-2.0
"""The threads that call NVML, and what becomes of threads that do not return."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Nvml, NvmlError, Return
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.threads import Beat, HungError, LeftError, NvmlThreads
from dra_driver.process.call_threads import CallThreads
from tests.support.nodes import make_node
from tests.support.waiting import wait_for


class Stuck:
    """Work that waits to be told to go on."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.reached: list[str] = []

    def __call__(self, beat: Beat) -> str:
        self.go.wait(30)
        self.reached.append("after the call")
        beat()
        self.reached.append("the next step")
        return "done"


def test_work_gives_its_result_or_its_exception() -> None:
    threads = NvmlThreads()
    assert threads.run("GPU-0", lambda _: threading.current_thread().name) == "nvml-GPU-0"
    with pytest.raises(ZeroDivisionError):
        threads.run("GPU-0", lambda _: 1 // 0)
    assert threads.run("GPU-0", lambda _: None) is None


def test_renaming_a_gpu_without_a_thread_changes_nothing() -> None:
    threads = NvmlThreads()
    threads.rename("GPU-0", "GPU-1")
    threads.check(["GPU-1"])
    assert threads.run("GPU-1", lambda _: threading.current_thread().name) == "nvml-GPU-1"


def test_steps_may_take_long_together() -> None:
    waits = threading.Event()

    def work(beat: Beat) -> str:
        for _ in range(5):
            waits.wait(0.15)
            beat()
        return "done"

    assert NvmlThreads().run("GPU-0", work, 0.6) == "done"


def test_hung_thread_is_given_up_and_only_its_gpu_is_refused() -> None:
    returned: list[str] = []
    threads, stuck, kept = NvmlThreads(), Stuck(), threading.Event()
    threads.listen(returned.append)
    with pytest.raises(HungError, match=r"a call to the driver for GPU-0 has not returned within 0.1 s; nothing can"):
        threads.run("GPU-0", stuck, 0.1, lambda: kept.set)
    with pytest.raises(HungError, match="has not returned"):
        threads.run("GPU-0", lambda _: None)
    with pytest.raises(HungError):
        threads.check(["GPU-1", "GPU-0"])
    threads.check(["GPU-1"])
    assert "GPU-0 has not returned for 0 s" in str(threads.problem())
    assert threads.run("GPU-1", lambda _: "fine") == "fine"
    assert not kept.is_set()
    assert returned == []
    stuck.go.set()
    wait_for(lambda: returned == ["GPU-0"], "the call to be noticed")
    assert kept.is_set()
    assert stuck.reached == ["after the call"]  # nobody waits for the next step
    assert threads.run("GPU-0", lambda _: "again") == "again"
    assert threads.problem() is None


def test_whoever_does_not_look_is_left_too() -> None:
    returned: list[str] = []
    threads, go = NvmlThreads(), threading.Event()
    threads.listen(returned.append)
    seen: list[bool] = []

    def work(beat: Beat) -> None:
        go.wait(30)
        try:
            beat()
        except LeftError:
            seen.append(True)
            raise

    with pytest.raises(HungError):
        threads.run("GPU-0", work, 0.1)
    go.set()
    wait_for(lambda: bool(returned), "the end")
    assert seen == [True]


def test_several_callers_may_give_up_waiting_for_the_same_thread() -> None:
    threads, stuck = NvmlThreads(), Stuck()
    errors: list[Exception] = []
    undone: list[int] = []

    def call(number: int, work: Callable[[Beat], object]) -> None:
        try:
            threads.run("GPU-0", work, 0.3, lambda: lambda: undone.append(number))
        except HungError as error:
            errors.append(error)

    callers = [threading.Thread(target=call, args=(number, stuck)) for number in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (len(errors), undone) == (3, [])
    stuck.go.set()
    wait_for(lambda: sorted(undone) == [0, 1, 2], "each to tidy up")
    assert stuck.reached == ["after the call"]
    assert threads.run("GPU-0", lambda _: "again") == "again"


def test_work_that_waits_behind_slow_work_is_not_hung() -> None:
    threads, slow = NvmlThreads(), Stuck()
    first = threads.start("GPU-0", slow, 60.0)
    answers: list[object] = []
    second = threading.Thread(target=lambda: answers.append(threads.run("GPU-0", lambda _: "second", 0.1)))
    second.start()
    second.join(0.5)
    assert (answers, threads.hangs()) == ([], ())
    slow.go.set()
    second.join(30)
    assert (threads.wait(first), answers) == ("done", ["second"])


def test_answers_of_several_gpus_are_gathered_whatever_becomes_of_one(caplog: pytest.LogCaptureFixture) -> None:
    threads = NvmlThreads()
    unexpected: list[str] = []
    threads.unexpected = unexpected.append
    error = NvmlError(Return.UNKNOWN, "nvmlDeviceGetUUID")

    def fails() -> str:
        raise error

    def is_wrong() -> str:
        raise KeyError("a bug")

    found = threads.gather({"well": lambda: "fine", "bad": fails, "wrong": is_wrong}, 60.0)
    assert (found["well"], found["bad"]) == ("fine", error)
    assert "KeyError" in str(found["wrong"])
    assert "Traceback" in caplog.text
    assert unexpected == ["read GPU"]


def test_a_gpu_that_does_not_answer_in_time_has_no_answer_or_hangs() -> None:
    threads, slow, stuck = NvmlThreads(), Stuck(), Stuck()
    waiting = threads.start("busy", slow, 60.0)
    assert threads.gather({"busy": lambda: "late"}, 0.1) == {"busy": None}

    def answer() -> object:
        return threads.gather({"hung": lambda: stuck(lambda: None)}, 0.1)["hung"]

    wait_for(lambda: isinstance(answer(), HungError), "a call that had its whole time")
    slow.go.set()
    stuck.go.set()
    assert threads.wait(waiting) == "done"
    wait_for(lambda: threads.problem() is None, "the call to return")
    assert threads.gather({"hung": lambda: "well"}, 30.0) == {"hung": "well"}


def test_work_for_a_key_goes_on_under_its_new_name() -> None:
    threads, stuck = NvmlThreads(), Stuck()
    running = threads.start("GPU 3", stuck, 60.0)
    threads.rename("GPU 3", "GPU-abc")
    behind = threads.start("GPU-abc", lambda _: "behind", 60.0)
    assert threads.run("GPU 3", lambda _: "another GPU") == "another GPU"
    threads.rename("GPU 3", "GPU-abc")
    behind_both = threads.start("GPU-abc", lambda _: "behind both", 60.0)
    assert stuck.reached == []
    stuck.go.set()
    assert [threads.wait(job) for job in (running, behind, behind_both)] == ["done", "behind", "behind both"]


def test_all_gpus_that_answer_soon_are_asked_by_the_same_thread() -> None:
    threads = NvmlThreads(soon=60.0)
    answers = threads.gather({f"GPU-{number}": threading.get_ident for number in range(8)}, 60.0)
    assert len(answers) == 8
    assert len(set(answers.values())) == 1


def test_gpus_behind_one_that_hangs_are_asked_by_other_threads() -> None:
    threads, stuck = NvmlThreads(), Stuck()
    asked = [threading.Event() for _ in range(7)]
    work: dict[str, Callable[[], object]] = {"hung": lambda: stuck(lambda: None)}
    work |= {f"GPU-{number}": each.set for number, each in enumerate(asked)}
    gathering = CallThreads("gather").submit(threads.gather, work, 60.0)
    assert all(each.wait(60) for each in asked)
    assert stuck.reached == []
    stuck.go.set()
    assert gathering.result(60) == {"hung": "done"} | dict.fromkeys(list(work)[1:])


def test_the_key_of_a_gpu_that_is_gone_is_forgotten() -> None:
    threads, gone = NvmlThreads(), Stuck()
    job = threads.start("GPU-gone", gone, 60.0)
    threads.keep(["GPU-0"])
    assert threads.run("GPU-gone", lambda _: "a new GPU") == "a new GPU"
    gone.go.set()
    assert threads.wait(job) == "done"


def test_after_the_end_nothing_is_begun() -> None:
    threads, reached = NvmlThreads(), threading.Event()
    threads.end()
    with pytest.raises(NvmlError, match="no more calls"):
        threads.run("GPU-0", lambda _: reached.set())
    with pytest.raises(NvmlError, match="no more calls"):
        threads.gather({"GPU-0": reached.set}, 1.0)
    assert not reached.is_set()


def test_the_call_that_hangs_is_named_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = make_node(tmp_path, "h100x8").node
    nvml: Nvml = node.nvml()
    nvml.initialize()
    gpu = nvml.device_by_index(0)
    node.inject(Fault("nvmlDeviceSetMigMode", seconds=1000.0))
    threads = NvmlThreads()
    with pytest.raises(HungError, match=r"^nvmlDeviceSetMigMode for GPU-0 has not returned within 0\.2 s"):
        threads.run("GPU-0", lambda _: nvml.set_mig_mode(gpu, True), 0.2)
    (hang,) = threads.hangs()
    assert hang.call == "nvmlDeviceSetMigMode"
    assert hang.key == "GPU-0"
    assert hang.seconds >= 0.2
    assert caplog.text.count("nvmlDeviceSetMigMode for GPU-0 has not returned") == 1
    node.clear_faults()
    wait_for(lambda: not threads.hangs(), "the call to return")
    assert "has returned" in caplog.text


WITHOUT_MORE_THREADS = """
import threading
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.threads import NvmlThreads
from dra_driver.process.call_threads import CallThreads
threads, calls, go = NvmlThreads(), CallThreads("calls"), threading.Event()
begun = threading.Event()
threads.start("GPU-0", lambda _: begun.set() or go.wait(), 60.0)
running = calls.submit(go.wait)
begun.wait(60)
threading.stack_size(1 << 47)  # more than there is: no thread can be started
try:
    threads.run("GPU-1", lambda _: None)
except NvmlError as error:
    print(error)
print(threads.gather({}, 1.0))
waiting = calls.submit(lambda: "it waited")
behind = threads.start("GPU-0", lambda _: "so did work for a GPU that has a thread", 60.0)
go.set()
print(waiting.result(60))
print(threads.wait(behind))
"""


@pytest.mark.node
def test_work_without_a_thread_is_refused_at_once_and_a_call_of_kubelet_waits() -> None:
    command = [sys.executable, "-c", WITHOUT_MORE_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "starting a thread: INSUFFICIENT_RESOURCES (can't start new thread)",
        "{}",
        "it waited",
        "so did work for a GPU that has a thread",
    ]


COLLECTING = """
import gc, threading, time
from dra_driver.gpu.threads import NvmlThreads, HungError
threads, go = NvmlThreads(), threading.Event()
for number in range(50):
    threading.Thread(target=go.wait, daemon=True).start()
try:
    threads.run("GPU-0", lambda _: go.wait(), 0.01)
except HungError:
    pass
gc.set_threshold(1)
gc.callbacks.append(lambda *_: time.sleep(0))  # Python code: another thread may run
ends = time.monotonic() + 2
def look():
    while time.monotonic() < ends:
        assert len(threads.hangs()) == 1
lookers = [threading.Thread(target=look) for _ in range(4)]
for one in lookers:
    one.start()
for one in lookers:
    one.join()
"""


@pytest.mark.node
def test_garbage_collection_while_a_hang_is_described_blocks_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_end_when_nothing_refers_to_their_owner() -> None:
    threads = NvmlThreads()
    thread = threads.run("GPU-0", lambda _beat: threading.current_thread())
    del threads
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
