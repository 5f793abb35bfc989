# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.golden.allocation [DIR]`: how often the allocator agrees with Kubernetes.

DIR is a folder of scenarios, by default this one. Prints the agreement per category and every
disagreement; exits with 1 unless all scenarios agree.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from .scenario import judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.allocation", description="Agreement with Kubernetes.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, metavar="DIR")
    folder: Path = parser.parse_args().folder
    total: Counter[str] = Counter()
    agreeing: Counter[str] = Counter()
    for path in sorted(folder.glob("*/*.yaml")):
        category = path.parent.name
        total[category] += 1
        found = judge(path)
        agreeing[category] += not found
        for difference in found:
            print(f"{category}/{path.stem}, {difference}\n")
    for category in sorted(total):
        print(f"{category:22} {agreeing[category]:4} of {total[category]:4}")
    print(f"{'total':22} {agreeing.total():4} of {total.total():4}")
    if not total:
        print(f"{folder} has no scenarios (<category>/<name>.yaml)", file=sys.stderr)
    return 0 if total and agreeing == total else 1


if __name__ == "__main__":
    sys.exit(main())
