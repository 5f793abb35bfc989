# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.golden.scheduling [DIR]`: how often whole pods and quotas agree with Kubernetes.

DIR is a folder of scenarios, by default this one. Prints the agreement per category and every
disagreement; exits with 1 unless all scenarios agree.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from .scenario import disagreements, scenarios


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.scheduling", description="Agreement with Kubernetes.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, metavar="DIR")
    folder: Path = parser.parse_args().folder
    total: Counter[str] = Counter()
    agreeing: Counter[str] = Counter()
    for scenario in scenarios(folder):
        total[scenario.category] += 1
        found = list(disagreements(scenario))
        agreeing[scenario.category] += not found
        for difference in found:
            print(f"{scenario}, {difference}\n")
    for category in sorted(total):
        print(f"{category:22} {agreeing[category]:4} of {total[category]:4}")
    print(f"{'total':22} {agreeing.total():4} of {total.total():4}")
    if not total:
        print(f"{folder} has no scenarios (<category>/<name>.yaml)", file=sys.stderr)
    return 0 if total and agreeing == total else 1


if __name__ == "__main__":
    sys.exit(main())
