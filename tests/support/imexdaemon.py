# SPDX-License-Identifier: Apache-2.0
"""dra-imex-daemon with other times: `python -m tests.support.imexdaemon TIMES FLAG...`.

TIMES is JSON: fields of `DaemonTimes`.
"""

import json
import sys

import click

from dra_driver.domains.daemon.main import serve
from dra_driver.domains.daemon.options import DaemonOptions, daemon_options
from dra_driver.domains.daemon.times import DaemonTimes
from dra_driver.process.command import logging_options, run


@click.command()
@daemon_options
@logging_options
def daemon(options: DaemonOptions) -> None:
    """Run the daemon."""
    serve(options, DaemonTimes(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    run(daemon, sys.argv[2:])
