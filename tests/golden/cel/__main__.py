# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.golden.cel [DIR] [--release 1.36]`: how often our CEL agrees with Kubernetes.

DIR is a folder with devices.json and vectors.jsonl, by default this one, and the release is the one that gave the
answers. Prints the agreement per category and every disagreement; exits with 1 unless all vectors agree.
"""

import argparse
import io
import sys
from collections import Counter
from pathlib import Path

from .vectors import RELEASE, differences, vectors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.cel", description="Agreement with Kubernetes.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, metavar="DIR")
    parser.add_argument("--release", default=RELEASE, help="the release that gave the answers (%(default)s)")
    asked = parser.parse_args()
    folder: Path = asked.folder
    missing = [name for name in ("devices.json", "vectors.jsonl") if not (folder / name).is_file()]
    if missing:
        parser.error(f"{folder} has no {' and no '.join(missing)}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an expression may hold what cannot be printed
    total: Counter[str] = Counter()
    agreeing: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for vector in vectors(folder, asked.release):
        total[vector.category] += 1
        found = differences(vector)
        agreeing[vector.category] += not found
        wrong.update({difference.what for difference in found})
        if found:
            print(vector, *(f"  {difference}" for difference in found), "", sep="\n")
    for category in sorted(total):
        print(f"{category:16} {agreeing[category]:5} of {total[category]:5}")
    print(f"{'total':16} {agreeing.total():5} of {total.total():5}")
    for what, count in wrong.most_common():
        print(f"vectors that differ in {what}: {count}")
    return 0 if total and agreeing == total else 1


if __name__ == "__main__":
    sys.exit(main())
