# SPDX-License-Identifier: Apache-2.0
"""How often scenarios agree with Kubernetes: what the runners of `allocation` and `scheduling` share."""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.scheduler.allocator.features import DEFAULT_RELEASE

Judged = tuple[str, str, Sequence[object]]
"""A scenario's category, its name, and what it disagrees in."""


_COMPUTED_BY: Final = re.compile(r"Kubernetes (\d+\.\d+(?:\.\d+)?)")


def computed_by(expected: Mapping[str, Any]) -> str:
    """The release that gave an answer, such as `1.36.2`: the newest one, if the answer does not say so."""
    found = _COMPUTED_BY.match(expected.get("computedBy", ""))
    return found[1] if found is not None else DEFAULT_RELEASE


def run(kind: str, default: Path, judge: Callable[[Path], Iterable[Judged]]) -> int:
    """`python -m tests.golden.<kind> [DIR]`: print the agreement per category and every disagreement; the exit status
    is 1 unless all scenarios agree.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.golden.{kind}", description="Agreement with Kubernetes.")
    parser.add_argument("folder", nargs="?", type=Path, default=default, metavar="DIR")
    folder: Path = parser.parse_args().folder
    total: Counter[str] = Counter()
    agreeing: Counter[str] = Counter()
    for category, name, found in judge(folder):
        total[category] += 1
        agreeing[category] += not found
        for difference in found:
            print(f"{category}/{name}, {difference}\n")
    for category in sorted(total):
        print(f"{category:22} {agreeing[category]:4} of {total[category]:4}")
    print(f"{'total':22} {agreeing.total():4} of {total.total():4}")
    if not total:
        print(f"{folder} has no scenarios (<category>/<name>.yaml, or <category>.yaml)", file=sys.stderr)
    return 0 if total and agreeing == total else 1
