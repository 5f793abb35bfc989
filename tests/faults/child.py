# SPDX-License-Identifier: Apache-2.0
"""The plugin as a process that can be killed at any point: `python -m tests.faults.child ORDER FLAG...`.

It runs what dra-kubeletplugin runs, with its flags, except that it counts points (see points) and ends at the one that
its trigger says, or fails to change files from there on. The trigger is a file that the tests map into memory too.
The order is JSON: {"trigger": FILE, "counts": FILE, "watch": [FOLDER], "starts": BOOL, "impatient": BOOL}. An
impatient process has short time limits for calls of NVML.
"""

import json
import mmap
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from dra_driver.gpu.options import Hardware
from dra_driver.process.command import logging_options, run
from kubeletplugin.options import PluginOptions, plugin_options
from kubeletplugin.serve import serve

from .controller_child import impatient_session
from .points import Points, Trigger, disk_fails, kill
from .resources import write_on_signal


def main() -> None:
    """Run the plugin in this process."""
    order = json.loads(sys.argv[1])
    write_on_signal(signal.SIGUSR1, Path(order["counts"]))
    with Path(order["trigger"]).open("r+b") as file:
        trigger = Trigger.from_buffer(mmap.mmap(file.fileno(), 0))
    points = Points(trigger, lambda what: _strike(trigger.error, what), starts=order["starts"])
    with ExitStack() as stack:
        stack.enter_context(points.of_files(*map(Path, order["watch"])))
        _run(points, sys.argv[2:], impatient=order["impatient"])


def _strike(error: int, what: str) -> None:
    if error:
        disk_fails(error)(what)
    else:
        kill(what)


def _run(points: Points, arguments: list[str], *, impatient: bool) -> None:
    @click.command()
    @plugin_options
    @logging_options
    def plugin(options: PluginOptions) -> None:
        hardware = options.node.hardware
        if impatient:
            setattr(Hardware, "session", impatient_session)  # noqa: B010 - mypy takes no assignment here
        counted = replace(hardware, nvml=lambda: points.gateway(hardware.nvml()))
        serve(replace(options, node=replace(options.node, hardware=counted)))

    run(plugin, arguments)


if __name__ == "__main__":
    main()
