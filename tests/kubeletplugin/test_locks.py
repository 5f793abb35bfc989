# SPDX-License-Identifier: Apache-2.0
"""Locks by name."""

import threading

from kubeletplugin.locks import KeyedLocks


def test_one_key_is_held_by_one_thread_and_others_do_not_wait() -> None:
    locks = KeyedLocks()
    order: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with locks.hold("a"):
            entered.set()
            leave.wait(10)
            order.append("first")

    def second() -> None:
        with locks.hold("a"):
            order.append("second")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert entered.wait(10)
    threads.append(threading.Thread(target=second))
    threads[1].start()
    with locks.hold("b"), locks.try_hold("a") as free:
        assert not free
    leave.set()
    for thread in threads:
        thread.join(10)
    assert order == ["first", "second"]
    with locks.try_hold("a") as free:
        assert free
