# SPDX-License-Identifier: Apache-2.0
"""A thread for each call that runs."""

import threading
import time
from concurrent.futures import wait

import pytest

from dra_driver.process.call_threads import CallThreads
from tests.support.waiting import wait_for


def test_calls_do_not_wait_for_one_another() -> None:
    threads = CallThreads("test")
    all_run = threading.Barrier(100, timeout=60)
    assert all(call.result(60) >= 0 for call in [threads.submit(all_run.wait) for _ in range(100)])


def test_a_thread_that_is_free_takes_the_next_call() -> None:
    threads = CallThreads("test", idle_seconds=60)
    served = {threads.submit(threading.get_ident).result(60) for _ in range(200)}
    assert len(served) < 200  # not 1, because a thread may become free only after the next call has come
    threads.shutdown()


def test_threads_end_when_there_is_nothing_to_do() -> None:
    threads = CallThreads("idle-test", idle_seconds=0.2)
    wait([threads.submit(time.sleep, 0.05) for _ in range(20)], 60)
    wait_for(
        lambda: not [thread for thread in threading.enumerate() if thread.name == "idle-test"], "the threads to end"
    )
    assert threads.submit(lambda: "again").result(60) == "again"


def test_exception_of_a_call_is_raised_for_its_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        CallThreads("test").submit(lambda: 1 // 0).result(60)


def test_no_call_is_taken_after_the_end() -> None:
    threads = CallThreads("test")
    threads.shutdown()
    with pytest.raises(RuntimeError, match="take no more calls"):
        threads.submit(lambda: None)
