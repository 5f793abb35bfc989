# SPDX-License-Identifier: Apache-2.0
"""Pauses between attempts that fail."""

from dra_driver.process.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_begin_anew_after_success() -> None:
    backoff = Backoff(1.0, 5.0)
    for _ in range(2):
        for most in (1.0, 2.0, 4.0, 5.0, 5.0):
            assert most / 2 <= backoff.pause() <= most
        backoff.reset()


def test_two_that_failed_together_do_not_come_back_together() -> None:
    assert len({Backoff(1.0, 5.0).pause() for _ in range(20)}) > 1
