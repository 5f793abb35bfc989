# SPDX-License-Identifier: Apache-2.0
"""Telling a person who waits what the command is doing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

_DELAY: Final = 0.5
"""Seconds. What takes less is not worth a line."""


_WIDTH: Final = 20


def bar(done: int, total: int) -> str:
    """A bar with a count: `[##########          ] 50 of 100`."""
    filled = _WIDTH * done // max(1, total)
    return f"[{'#' * filled}{' ' * (_WIDTH - filled)}] {done} of {total}"


@contextmanager
def progress(text: str, *, delay: float = _DELAY) -> Iterator[Callable[[str], None]]:
    """Shows `text` on standard error after `delay` seconds, and takes it away at the end.

    Gives a function that replaces the text. If standard error is not a terminal, nothing is shown. Print to standard
    output only after the end: the line would be in between.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    spinner = Spinner("line", Text(text), style="dim")
    # rich would send standard output, which may be a file, to the console of the line
    line = Live(spinner, console=console, transient=True, redirect_stdout=False)
    timer = Timer(delay, line.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda changed: spinner.update(text=Text(changed))
    finally:
        timer.cancel()
        timer.join()  # it may be starting the line just now
        line.stop()
