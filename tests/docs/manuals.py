# SPDX-License-Identifier: Apache-2.0
"""Writes a manual page for each command and subcommand for people: `python -m tests.docs.manuals FOLDER`."""

import datetime
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from click_man.core import write_man_pages

from dra_driver import __version__
from dra_driver.dryrun.main import dryrun
from dra_driver.sandbox.main import sandbox
from kubeletplugin.main import kubeletplugin

COMMANDS: Final[Mapping[str, click.Command]] = {
    "dra-dryrun": dryrun,
    "dra-kubeletplugin": kubeletplugin,
    "dra-sandbox": sandbox,
}


def write_manuals(folder: Path) -> None:
    """The pages have the date of `SOURCE_DATE_EPOCH`, so that the same commit gives the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    day = datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")
    for name, command in COMMANDS.items():
        write_man_pages(name, command, version=__version__, target_dir=str(folder), date=day)


if __name__ == "__main__":
    write_manuals(Path(sys.argv[1]))
