# SPDX-License-Identifier: Apache-2.0
"""Plugin processes that can be killed at any point, by the hundred: `python -m tests.faults.child`.

This process imports the plugin and then becomes it as often as it is told to, by forking. A child runs what
dra-kubeletplugin runs, with its flags, except that it counts points (see points) and ends at the one that its dial
says, or fails to change files from there on. The dial is a file that the tests map into their memory too.

An order is a line of JSON on standard input, {"dial": FILE, "log": FILE, "census": FILE, "watch": [FOLDER],
"starts": BOOL, "arguments": [...]}; the answer is the child's process ID. The end of the input is the end of all
children.
"""

import gc
import json
import mmap
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dra_driver.command import logging_options, run
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.simulation.board import boards
from kubeletplugin.options import Options, plugin_options
from kubeletplugin.serve import serve

from .census import answer_to
from .controller_child import impatient_session
from .points import Dial, Points, disk_fails, kill


def main() -> None:
    """Take orders."""
    boards()  # read once, for all
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        children.add(pid)
        print(pid, flush=True)
        children -= {one for one in children if os.waitpid(one, os.WNOHANG)[0]}
    for one in children:
        os.kill(one, signal.SIGKILL)


def _become(order: dict[str, Any]) -> None:
    """Run the plugin in this process, and end with it."""
    code = 1
    try:
        with Path(order["log"]).open("ab") as log, Path(os.devnull).open("rb") as nothing:
            for number, file in enumerate((nothing, log, log)):
                os.dup2(file.fileno(), number)
        answer_to(signal.SIGUSR1, "_Plugin", Path(order["census"]))
        with Path(order["dial"]).open("r+b") as file:
            dial = Dial.from_buffer(mmap.mmap(file.fileno(), 0))
        points = Points(dial, lambda what: _strike(dial.error, what), starts=order["starts"])
        with ExitStack() as stack:
            stack.enter_context(points.of_files(*map(Path, order["watch"])))
            _run(points, order["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)


def _strike(error: int, what: str) -> None:
    if error:
        disk_fails(error)(what)
    else:
        kill(what)


def _run(points: Points, arguments: list[str]) -> None:
    @click.command()
    @plugin_options
    @logging_options
    def plugin(options: Options) -> None:
        hardware = options.node.hardware
        setattr(Hardware, "session", impatient_session)  # noqa: B010 - mypy takes no assignment here
        counted = replace(hardware, nvml=lambda: points.gateway(hardware.nvml()))
        serve(replace(options, node=replace(options.node, hardware=counted)))

    run(plugin, arguments)


if __name__ == "__main__":
    main()
