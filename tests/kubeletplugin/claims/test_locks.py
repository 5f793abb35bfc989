# SPDX-License-Identifier: Apache-2.0
"""Locks by name, between threads and between processes."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kubeletplugin.claims.call import OWN_WORK, Call
from kubeletplugin.claims.locks import FileRanges, KeyedLocks
from kubeletplugin.errors import StoppedError
from tests.kubeletplugin.inside import CallThread
from tests.support.waiting import wait_for

HOLDER = """
import sys
from pathlib import Path
from kubeletplugin.claims.call import Call
from kubeletplugin.claims.locks import FileRanges
ranges = FileRanges(Path(sys.argv[1]))
assert ranges.try_lock("claim a")
print("held", flush=True)
sys.stdin.read()
"""


class GiveUpError(Exception):
    """Nobody waits any more."""


def test_key_is_held_by_one_thread_and_other_keys_do_not_wait() -> None:
    locks = KeyedLocks()
    order: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with locks.hold("a"):
            entered.set()
            leave.wait(60)
            order.append("first")

    def second() -> None:
        with locks.hold("a"):
            order.append("second")

    calls = [CallThread(first)]
    assert entered.wait(60)
    calls.append(CallThread(second))
    with locks.hold("b"), locks.try_hold("a") as free:
        assert not free
    leave.set()
    for call in calls:
        call.result()
    assert order == ["first", "second"]
    with locks.try_hold("a") as free:
        assert free


def test_several_keys_are_taken_in_one_order_by_all() -> None:
    locks = KeyedLocks()
    keys = ["a", "b", "c"]

    def take(rotation: int) -> None:
        for _ in range(200):
            with locks.hold(*keys[rotation:], *keys[:rotation], "a"):
                pass

    for call in [CallThread(partial(take, rotation)) for rotation in range(3)]:
        call.result()


def test_whoever_waits_can_give_up() -> None:
    locks = KeyedLocks()
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 2:
            raise GiveUpError

    with locks.hold("a"):
        call = CallThread(lambda: locks.acquire("a", Call(check)))
        with pytest.raises(GiveUpError):
            call.result()
    with locks.try_hold("a") as free:
        assert free


def test_call_with_a_time_limit_ends_after_it_and_not_before() -> None:
    OWN_WORK.within(3600.0, "claim a").check()
    with pytest.raises(StoppedError, match="still working on claim a"):
        OWN_WORK.within(-1.0, "claim a").check()


def test_key_that_is_handed_over_stays_locked_until_given_back() -> None:
    locks = KeyedLocks()
    with locks.hold("a", "b") as held:
        give_back = held.hand_over("a")
    with locks.try_hold("a") as free, locks.try_hold("b") as other_free:
        assert (free, other_free) == (False, True)
    give_back()
    with locks.try_hold("a") as free:
        assert free


class TestBetweenProcesses:
    """One file, several processes; two FileRanges in one process exclude each other as processes do."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "plugin" / "locks"

    @pytest.fixture
    def both(self, file: Path) -> Iterator[tuple[KeyedLocks, KeyedLocks]]:
        first, second = FileRanges(file), FileRanges(file)
        yield KeyedLocks(first, "claim "), KeyedLocks(second, "claim ")
        first.close()
        second.close()

    def test_a_key_is_held_by_one_of_them(self, both: tuple[KeyedLocks, KeyedLocks], file: Path) -> None:
        mine, other = both
        with mine.hold("a"), mine.hold("b"):
            with other.try_hold("a") as free, other.try_hold("c") as another:
                assert (free, another) == (False, True)
            waiting = CallThread(lambda: other.acquire("a"))
        waiting.result()
        with mine.try_hold("a") as free:
            assert not free
        other.release("a")
        assert file.stat().st_size == 0

    def test_keys_of_different_kinds_are_different(self, file: Path) -> None:
        ranges = FileRanges(file)
        with KeyedLocks(ranges, "claim ").hold("a"), KeyedLocks(FileRanges(file), "gpu ").try_hold("a") as free:
            assert free

    @pytest.mark.node
    def test_the_kernel_takes_back_what_a_killed_one_held(self, file: Path) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            locks = KeyedLocks(FileRanges(file), "claim ")
            with locks.try_hold("a") as free:
                assert not free
            waiting = CallThread(lambda: locks.acquire("a"))
            holder.kill()
        waiting.result()

    def test_first_process_is_told_that_it_is_alone(self, file: Path) -> None:
        first, second = FileRanges(file), FileRanges(file)
        assert first.join()
        assert not second.join()
        first.close()
        third = FileRanges(file)
        assert not third.join()
        second.close()
        third.close()
        last = FileRanges(file)
        wait_for(last.join, "everybody to be gone")
