# SPDX-License-Identifier: Apache-2.0
"""How long the commands take from exec to their end, in a tree whose bytecode is compiled.

    python -m tests.bench.start [--runs 10] [--tree FOLDER] [--json FILE]

Milliseconds of the wall and of CPU time (user and system), medians. The first run compiles, and is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .counts import COMMANDS
from .prepare import ROOT, environment_of

SCRIPT: Final = "from dra_driver.dryrun.start import main; main()"
"""What the console script dra-dryrun runs."""


def measure(command: Sequence[str], tree: Path, runs: int) -> dict[str, float]:
    """Medians of the times of a command, in milliseconds."""
    environment = {name: value for name, value in environment_of(tree).items() if name != "PYTHONDONTWRITEBYTECODE"}
    walls, processor = [], []
    for _ in range(runs + 1):
        before, began = os.times(), time.perf_counter()
        subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
        walls.append((time.perf_counter() - began) * 1000)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        processor.append(used * 1000)
    return {"wall ms": statistics.median(walls[1:]), "CPU ms": statistics.median(processor[1:])}


def main() -> None:
    """Run all commands and print their times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the folder with the packages that are measured")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    commands = {name: [sys.executable, "-c", SCRIPT, *arguments] for name, arguments in COMMANDS.items()}
    for name, command in {"python -c pass": [sys.executable, "-c", "pass"], **commands}.items():
        times = measure(command, options.tree.absolute(), options.runs)
        figures |= {f"{name}: {what}": round(value, 1) for what, value in times.items()}
        print(f"{name:40} " + "   ".join(f"{what} {value:7.1f}" for what, value in times.items()), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
