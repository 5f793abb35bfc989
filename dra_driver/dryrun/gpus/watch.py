# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun gpus --watch`: the GPUs of a cluster, again after each change."""

import os
import queue
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console

from ...kube.api import ApiClient
from ...process.command import InputError
from ...process.streams import printable
from ..live import LiveCluster
from ..report import DOCUMENTS, print_report
from ..sources import Place, Source, completed
from ..whatif import WhatIf, new_nodes
from .changes import changes
from .report import GpusReport
from .screen import ScreenView, keys_of, rows_of
from .users import ConsumerPod

Make = Callable[[Source, list[ConsumerPod]], GpusReport]
"""Makes the report of a state of the cluster."""

_REFRESH: Final = 0.5
"""Seconds after which the size of the terminal is looked at again."""
_CLEAR: Final = 0.2
"""Seconds after which the thread that reads keys looks whether the view has ended."""


def watch_gpus(place: Place, what_if: WhatIf, make: Make, output: str) -> None:
    """Show the GPUs until the user ends it: on the whole terminal, or a line for each change in a pipe. As JSON or
    YAML, print a document for each state.

    Raises InputError if there is no cluster to watch, and ApiError.
    """
    if place.connection is None:
        raise InputError(f"--watch needs a cluster to watch, and the devices are from {place.where}")
    if output == "html":
        raise InputError("--watch: a page does not change; leave out --watch or -o html")
    live = LiveCluster(ApiClient(place.connection), place.where, devices_only=False)
    reports = _reports(live, place, what_if, make)
    try:
        if output in DOCUMENTS:
            for report in reports:
                print_report(report, output)
                sys.stdout.flush()
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _show(reports)
        else:
            _print_changes(reports)
    finally:
        live.stop()


def _reports(live: LiveCluster, place: Place, what_if: WhatIf, make: Make) -> Iterator[GpusReport]:
    added = new_nodes(what_if)
    for found in live.states():
        source = completed(place.source_of(found), what_if, place.features, added)
        pods = found.world.around.pods if found.world is not None else ()
        yield make(source, [ConsumerPod.of_pod(pod) for pod in pods])


def _print_changes(reports: Iterator[GpusReport]) -> None:
    """Print the first state as a table, and then a line for each change with its time."""
    before: GpusReport | None = None
    for report in reports:
        if before is None:
            print_report(report, "table")
        else:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            for change in changes(before.nodes, report.nodes):
                click.echo(printable(f"{now} {change}"))
        sys.stdout.flush()
        before = report


def _show(reports: Iterator[GpusReport]) -> None:
    """Show the live view until the user ends it. Raises the errors of `reports`."""
    events: queue.Queue[GpusReport | str | BaseException] = queue.Queue()
    ended = threading.Event()

    def follow() -> None:
        try:
            for report in reports:
                events.put(report)
        except BaseException as error:  # raised again by the thread that shows the view
            events.put(error)

    console = Console(highlight=False)
    with _keys(events, ended), console.screen(hide_cursor=True) as screen:
        threading.Thread(target=follow, daemon=True).start()
        view, title = ScreenView(), "reading the cluster"
        while not view.ended:
            screen.update(*view.lines(title, console.height))
            try:
                event = events.get(timeout=_REFRESH)
            except queue.Empty:
                continue
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, GpusReport):
                view, title = view.with_rows(rows_of(event.nodes)), f"{event.title}, from {event.where}"
            else:
                view = view.after(event)


@contextmanager
def _keys(events: "queue.Queue[GpusReport | str | BaseException]", ended: threading.Event) -> Iterator[None]:
    """In the context, keys become events as soon as they are pressed."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        while not ended.is_set():
            if select.select([terminal], [], [], _CLEAR)[0]:
                for key in keys_of(os.read(terminal, 64)):
                    events.put(key)

    tty.setcbreak(terminal)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
