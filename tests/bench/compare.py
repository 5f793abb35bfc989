# SPDX-License-Identifier: Apache-2.0
"""Compares the figures of this tree with those of another commit: `make bench-compare BASE=COMMIT`.

    python -m tests.bench.compare [--base COMMIT] [--short] [--runs 5]

Wheels of both trees are built in a temporary folder. The benches of this tree then measure the programs of both
(`--tree`), so both sides are measured in the same way, and a bench may be newer than the other commit. The benches only
need what programs keep between commits: flags, kubelet's protocol, and the API server. A figure that only one side has
is listed as such.

First `tests.bench.counts` counts what the programs do, and unless --short is given, other benches measure times, with
both trees in turn. The counts decide about the exit status: it is 1 if a count has more than LIMIT times the value of
the other commit, unless the message of a commit since then ends with the line `Cost-accepted: FIGURE`. Times are only
printed.

Without --base, this tree is compared with the commit at which its branch left main, and on main with the commit before.
If there is no such commit, as in a clone of one commit, there is nothing to compare, and the exit status is 0.
"""

import argparse
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.support.wheels import wheel_builder

from .prepare import ROOT

LIMIT: Final = 1.3
SLACK: Final = 0.5
"""What a count may grow by in any case: small counts, such as reads for each claim, are means of several claims."""
TRIES: Final = 3
COUNTS: Final = ("counts",)
TIMES: Final = (("start",), ("prepare", "--cycles", "200"), ("prepare", "--cycles", "200", "--mig"))
"""The benches, with their arguments."""

Figures = dict[str, float]


class BenchError(Exception):
    """A bench that does not run with the programs of a tree."""


def git(folder: Path, *arguments: str) -> bytes:
    """The output of git in a folder. Raises CalledProcessError."""
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True).stdout


def find_commit(folder: Path, *arguments: str) -> str | None:
    """The hash that a command of git prints, or None if there is no such commit."""
    try:
        return git(folder, *arguments).decode().strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def find_named(folder: Path, name: str) -> str | None:
    """The hash of a commit with a name that git knows."""
    return find_commit(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")


def find_base(folder: Path) -> str | None:
    """The commit at which the branch left main, or the parent of HEAD; None if there is none."""
    head = find_named(folder, "HEAD")
    for main in ("origin/main", "main"):
        fork = find_commit(folder, "merge-base", main, "HEAD")
        if fork not in (None, head):
            return fork
    return find_named(folder, "HEAD~1")


def accepted_since(folder: Path, commit: str) -> set[str]:
    """The figures that commits after this one may enlarge, by their trailers."""
    trailers = git(folder, "log", "--format=%(trailers:key=Cost-accepted,valueonly)", f"{commit}..HEAD")
    return {line.strip() for line in trailers.decode().splitlines()}


def copy_commit(folder: Path, commit: str, target: Path) -> None:
    """Write the files of a commit to a new folder."""
    archive = git(folder, "archive", "--format=zip", commit, ".", ":(exclude)tests")
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(target)


def copy_working_tree(folder: Path, target: Path) -> None:
    """Write the files of a working tree that git does not ignore to a new folder."""
    names = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", ".", ":(exclude)tests")
    for name in names.decode().split("\0"):
        if (folder / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target / name)


def install(wheel: Path, target: Path) -> None:
    """Install the packages of a wheel in a new folder with compiled bytecode, as pip does."""
    with zipfile.ZipFile(wheel) as files:
        files.extractall(target)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(target)], check=True)


def run_bench(bench: Sequence[str], tree: Path) -> Figures:
    """The figures of a bench; of several times, their median. Raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        output = Path(folder) / "figures.json"
        name, *arguments = bench
        words = [sys.executable, "-m", f"tests.bench.{name}", *arguments, "--tree", str(tree), "--json", str(output)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{' '.join(bench)}: {done.stderr.strip()}")
        found: dict[str, Any] = json.loads(output.read_text())
    suffix = " (MIG)" if "--mig" in arguments else ""
    return {f"{title}{suffix}": value["p50"] if isinstance(value, dict) else value for title, value in found.items()}


class Comparison:
    """The figures of several runs of both trees."""

    def __init__(self) -> None:
        self.runs: list[tuple[Figures, Figures]] = []
        """Of the base and of this tree."""

    def names(self) -> list[str]:
        """The names of all figures, in the order of the benches."""
        return list(dict.fromkeys(name for run in self.runs for side in run for name in side))

    def print(self) -> None:
        """Print the medians of both sides, the median of the ratios of the runs, and the smallest and largest ratio."""
        print(f"{'':56} {'base':>12} {'this tree':>12} {'ratio':>7}  {'spread':>13}")
        for name in self.names():
            before, after = self._median(0, name), self._median(1, name)
            ratios = sorted(run[1][name] / run[0][name] for run in self.runs if run[0].get(name) and name in run[1])
            shown = f"{statistics.median(ratios):7.2f}  {ratios[0]:5.2f} to {ratios[-1]:.2f}" if ratios else ""
            print(f"{name:56} {_text(before)} {_text(after)} {shown}".rstrip(), flush=True)

    def grown(self) -> list[str]:
        """The names of the figures that have grown beyond LIMIT."""
        found = []
        for name in self.names():
            before, after = self._median(0, name), self._median(1, name)
            if before is not None and after is not None and after > before * LIMIT + SLACK:
                found.append(name)
        return found

    def _median(self, side: int, name: str) -> float | None:
        values = [run[side][name] for run in self.runs if name in run[side]]
        return statistics.median(values) if values else None


def _text(figure: float | None) -> str:
    return f"{'-':>12}" if figure is None else f"{figure:12.1f}"


def figures_of_base(bench: Sequence[str], base: Path) -> Figures:
    """The figures of the base. Its programs may be too old for the bench: there are none then."""
    try:
        return run_bench(bench, base)
    except BenchError as error:
        print(f"the base has no figures of {error}", file=sys.stderr, flush=True)
        return {}


def compare_counts(base: Path, here: Path) -> Comparison:
    """Count both trees at the same time, as other work on the machine hardly changes counts. Raises BenchError.

    If a figure has grown, both are counted again, and the smallest counts decide: timers of a program only add to them.
    """
    old: Figures = {}
    new: Figures = {}
    comparison = Comparison()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(TRIES):
            before, after = pool.submit(figures_of_base, COUNTS, base), pool.submit(run_bench, COUNTS, here)
            old, new = smallest(old, before.result()), smallest(new, after.result())
            comparison.runs = [(old, new)]
            if not comparison.grown():
                break
    return comparison


def smallest(left: Figures, right: Figures) -> Figures:
    """The smaller one of each figure of two runs."""
    return {name: min(left.get(name, value), right.get(name, value)) for name, value in (left | right).items()}


def compare_times(base: Path, here: Path, runs: int) -> Comparison:
    """Measure both trees in turn. Every second run begins with this tree. Raises BenchError for this tree."""
    comparison = Comparison()
    for number in range(runs):
        old: Figures = {}
        new: Figures = {}
        for bench in TIMES:
            if number % 2:
                new |= run_bench(bench, here)
            old |= figures_of_base(bench, base)
            if not number % 2:
                new |= run_bench(bench, here)
        comparison.runs.append((old, new))
    return comparison


def main() -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="the other commit")
    parser.add_argument("--short", action="store_true", help="only counts")
    parser.add_argument("--runs", type=int, default=5, help="runs of each tree for times")
    options = parser.parse_args()
    commit = find_named(ROOT, options.base) if options.base else find_base(ROOT)
    if commit is None and options.base:
        parser.error(f"there is no commit {options.base} in this clone: fetch it, or name another one")
    if commit is None:
        print("no base: this clone has no commit before this one, so there is nothing to compare with")
        return 0
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        base, here = Path(folder) / "base", Path(folder) / "here"
        copy_commit(ROOT, commit, Path(folder) / "base-source")
        copy_working_tree(ROOT, Path(folder) / "here-source")
        with wheel_builder() as build:
            for tree in (base, here):
                install(build(Path(folder) / f"{tree.name}-source", Path(folder) / f"{tree.name}-wheel"), tree)
        print(git(ROOT, "log", "-1", "--format=base: %h %s", commit).decode().strip(), flush=True)
        try:
            counts = compare_counts(base, here)
            counts.print()
            if not options.short:
                compare_times(base, here, options.runs).print()
        except BenchError as error:
            sys.exit(f"this tree: {error}")
    refused = [name for name in counts.grown() if name not in accepted_since(ROOT, commit)]
    for name in refused:
        print(f"more than {LIMIT} times the value of the base: {name}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
