# SPDX-License-Identifier: Apache-2.0
"""Threads that repeat their work."""

import queue
import sys
import threading

import pytest

from dra_driver.process.worker import Worker
from tests.support import preloaded

LONG = 3600.0
"""No test waits for so long: it would fail at the time limit of pytest or of `PATIENCE`."""
PATIENCE = 30.0


class Work:
    """Work whose rounds a test can count, hold, and let fail. `returns` is what each round returns."""

    def __init__(self, returns: float | None = None) -> None:
        self.returns = returns
        self.rounds = 0
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.may_end.set()
        self.errors: list[Exception] = []

    def __call__(self) -> float | None:
        self.rounds += 1
        self.begun.release()
        assert self.may_end.wait(PATIENCE)
        if self.errors:
            raise self.errors.pop()
        return self.returns

    def wait_for_rounds(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE)


def has_ended(worker: Worker) -> bool:
    """Whether the thread of the worker, whose name no other thread has, is gone."""
    return worker.name not in [thread.name for thread in threading.enumerate()]


# When a round begins


def test_work_is_repeated_after_the_interval() -> None:
    work = Work()
    worker = Worker("repeat work", work, interval=0.001)
    worker.start()
    work.wait_for_rounds(4)
    worker.stop(PATIENCE)


def test_work_is_repeated_after_the_seconds_that_it_returns() -> None:
    work = Work(0.001)
    worker = Worker("repeat work", work, interval=LONG)
    worker.start()
    work.wait_for_rounds(4)
    worker.stop(PATIENCE)


def test_work_without_interval_is_repeated_only_when_it_is_woken() -> None:
    work = Work()
    worker = Worker("repeat work", work)
    worker.start()
    work.wait_for_rounds(1)
    assert worker.complete_round(PATIENCE)
    assert work.rounds == 2
    worker.stop(PATIENCE)


def test_first_round_can_begin_later() -> None:
    work = Work()
    worker = Worker("repeat work", work)
    worker.start(after=LONG)
    assert worker.complete_round(PATIENCE)
    assert work.rounds == 1
    worker.stop(PATIENCE)


def test_wake_ends_a_pause_between_rounds() -> None:
    work = Work(LONG)
    worker = Worker("repeat work", work)
    worker.start()
    work.wait_for_rounds(1)
    worker.wake()
    work.wait_for_rounds(1)
    worker.stop(PATIENCE)


def test_later_wake_does_not_delay_an_earlier_one() -> None:
    work = Work(LONG)
    worker = Worker("repeat work", work)
    worker.start()
    work.wait_for_rounds(1)
    worker.wake(0.01)
    worker.wake(LONG)
    work.wait_for_rounds(1)
    worker.stop(PATIENCE)


def test_wake_during_a_round_causes_another_round() -> None:
    work = Work(LONG)
    work.may_end.clear()
    worker = Worker("repeat work", work)
    worker.start()
    work.wait_for_rounds(1)
    worker.wake()
    work.may_end.set()
    work.wait_for_rounds(1)
    worker.stop(PATIENCE)


def test_no_wake_is_lost() -> None:
    changes = 0
    seen = 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal seen
        seen = changes

    def change() -> None:
        nonlocal changes
        for _ in range(500):
            with guard:
                changes += 1
            worker.wake()

    worker = Worker("see changes", work)
    worker.start()
    threads = [threading.Thread(target=change) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    worker.finish(PATIENCE)
    assert seen == 2000


# complete_round


def test_complete_round_ignores_a_round_that_began_earlier() -> None:
    work = Work()
    work.may_end.clear()
    worker = Worker("repeat work", work)
    worker.start()
    work.wait_for_rounds(1)
    answers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def ask() -> None:
        assert worker.complete_round(PATIENCE)
        answers.put(work.rounds)

    threading.Thread(target=ask).start()
    work.may_end.set()
    assert answers.get(timeout=PATIENCE) == 2
    worker.stop(PATIENCE)


def test_complete_round_ends_when_the_round_takes_too_long() -> None:
    work = Work()
    work.may_end.clear()
    worker = Worker("repeat work", work)
    worker.start()
    assert not worker.complete_round(0.01)
    work.may_end.set()
    worker.stop(PATIENCE)


def test_stopped_worker_completes_no_round() -> None:
    work = Work()
    worker = Worker("repeat work", work)
    worker.start()
    worker.stop(PATIENCE)
    rounds = work.rounds
    assert not worker.complete_round(LONG)
    assert work.rounds == rounds


# The end


def test_stop_does_not_wait_for_the_interval() -> None:
    work = Work()
    worker = Worker("wait for the interval", work, interval=LONG)
    worker.start()
    work.wait_for_rounds(1)
    worker.stop(PATIENCE)
    assert has_ended(worker)


def test_stop_before_the_first_round_prevents_it() -> None:
    work = Work()
    worker = Worker("wait for the first round", work)
    worker.start(after=LONG)
    worker.stop(PATIENCE)
    assert has_ended(worker)
    assert work.rounds == 0


def test_stop_waits_no_longer_than_asked() -> None:
    work = Work()
    work.may_end.clear()
    worker = Worker("hang in work", work)
    worker.start()
    work.wait_for_rounds(1)
    worker.stop(0.01)
    assert not has_ended(worker)
    work.may_end.set()
    worker.stop(PATIENCE)
    assert has_ended(worker)
    assert work.rounds == 1


def test_work_can_stop_its_worker() -> None:
    ended = threading.Event()

    def work() -> float:
        worker.stop(LONG)
        return 0.0

    worker = Worker("stop from inside", work, at_end=ended.set)
    worker.start()
    assert ended.wait(PATIENCE)


def test_at_end_is_called_once_on_the_thread_of_the_work() -> None:
    calls: list[str] = []
    work = Work()
    worker = Worker("call at the end", work, at_end=lambda: calls.append(threading.current_thread().name))
    worker.start()
    work.wait_for_rounds(1)
    worker.stop(PATIENCE)
    assert calls == ["call at the end"]


def test_worker_runs_on_the_calling_thread() -> None:
    threads: list[threading.Thread] = []

    def work() -> float:
        threads.append(threading.current_thread())
        if len(threads) == 2:
            worker.stop()
        return 0.0

    worker = Worker("run here", work)
    worker.run()
    assert threads == [threading.current_thread()] * 2


def test_finish_completes_everything_that_is_left() -> None:
    tasks = [3, 2, 1]
    done: list[int] = []

    def work() -> float | None:
        if not worker.is_finishing:
            return LONG  # the tasks are not due yet
        if not tasks:
            return None
        done.append(tasks.pop())
        return 0.0

    worker = Worker("complete tasks", work)
    worker.start()
    worker.finish(PATIENCE)
    assert has_ended(worker)
    assert done == [1, 2, 3]


def test_wake_during_the_last_round_of_finish_is_heard() -> None:
    work = Work()
    work.may_end.clear()
    worker = Worker("finish after a wake", work)
    worker.start(after=LONG)
    worker.finish(0.0)
    work.wait_for_rounds(1)
    worker.wake()
    work.may_end.set()
    worker.finish(PATIENCE)
    assert has_ended(worker)
    assert work.rounds >= 2


# Pauses inside of a round


def test_wake_does_not_end_a_pause_inside_of_a_round() -> None:
    worker = Worker("pause in work", lambda: worker.pause(LONG))
    worker.start()
    assert not worker.complete_round(0.05)
    worker.stop(PATIENCE)
    assert has_ended(worker)


def test_stop_ends_a_pause_inside_of_a_round() -> None:
    begun = threading.Event()

    def work() -> None:
        begun.set()
        worker.pause(LONG)

    worker = Worker("pause in work", work)
    worker.start()
    assert begun.wait(PATIENCE)
    worker.stop(PATIENCE)
    assert has_ended(worker)


# Unexpected errors


def test_contained_error_is_counted_and_the_work_is_repeated() -> None:
    counted: list[str] = []
    work = Work()
    work.errors.append(ValueError("odd"))
    worker = Worker("fail once", work, interval=0.001, count=counted.append)
    worker.start()
    work.wait_for_rounds(3)
    worker.stop(PATIENCE)
    assert counted == ["fail once"]


def test_contained_error_of_work_without_interval_is_tried_again() -> None:
    work = Work()
    work.errors.append(ValueError("odd"))
    worker = Worker("fail once", work, count=lambda _: None, retry=0.001)
    worker.start()
    work.wait_for_rounds(2)
    worker.stop(PATIENCE)


def test_error_that_is_not_contained_ends_the_worker() -> None:
    ended = threading.Event()
    work = Work()
    work.errors.append(ValueError("odd"))
    worker = Worker("fail once", work, at_end=ended.set)
    with pytest.raises(ValueError, match="odd"):
        worker.run()
    assert ended.is_set()
    assert worker.is_stopped


@pytest.mark.node
def test_error_that_is_not_contained_ends_the_process() -> None:
    program = """
from dra_driver.process.command import end_when_a_thread_fails
from dra_driver.process.worker import Worker
import threading

def work() -> None:
    raise ValueError("odd")

end_when_a_thread_fails()
Worker("fail once", work).start()
threading.Event().wait()
"""
    ended = preloaded.run([sys.executable, "-c", program])
    assert ended.returncode == 70
    assert "thread fail once failed" in ended.stderr
