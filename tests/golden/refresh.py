# SPDX-License-Identifier: Apache-2.0
"""`make golden FROM=DIR`, or `python -m tests.golden.refresh DIR`: take over newer answers of Kubernetes.

DIR has the folders `allocation`, `scheduling` and `1.37` (scenarios: `<category>/<name>.yaml` with
`<name>.expect.json`), and `cel` and `1.37/cel` (`devices.json`, `vectors.jsonl`). Files here stay as they are if DIR
does not have their folder. Git shows the changes. The README.md of each folder is written by hand.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from .stored import categories, category_scenarios, write_category

HERE = Path(__file__).parent
SCENARIOS = {"allocation": "allocation", "scheduling": "scheduling", "1.37": "allocation-1.37"}
"""Folders of scenarios: the name in DIR, and the name here."""
WRONG = {"all-mode-1.38/gen-01-004"}
"""Scenarios whose answer is not that of the release that they name: tests/golden/allocation-1.37/README.md."""


def refresh_scenarios(source: Path, target: Path) -> int:
    """Replace the files of all categories. Returns the number of scenarios."""
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.yaml"):
        old.unlink()
    count = 0
    for category in categories(source):
        scenarios = [scenario for scenario in category_scenarios(source, category) if str(scenario) not in WRONG]
        write_category(target / f"{category}.yaml", scenarios)
        count += len(scenarios)
    return count


def refresh_vectors(source: Path, newer: Path, target: Path) -> int:
    """Replace the vectors of CEL. Of the newer release, only answers that differ are stored. Returns their number."""
    for name in ("devices.json", "vectors.jsonl"):
        shutil.copyfile(source / name, target / name)
    if not (newer / "vectors.jsonl").is_file():
        return 0
    known = {json.loads(line)["id"]: json.loads(line)["expect"] for line in _lines(source)}
    changed = [line for line in _lines(newer) if json.loads(line)["expect"] != known[json.loads(line)["id"]]]
    (target / "vectors-1.37.jsonl").write_text("".join(changed), "utf-8")
    return len(changed)


def _lines(folder: Path) -> list[str]:
    with (folder / "vectors.jsonl").open(encoding="utf-8") as file:
        return list(file)


def main() -> int:
    """Refresh every folder that DIR has. The exit status is 1 if DIR has none of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.refresh", description="Newer answers of Kubernetes.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder: Path = parser.parse_args().folder
    found = False
    for name, here in SCENARIOS.items():
        if (folder / name).is_dir():
            found = True
            print(f"{here}: {refresh_scenarios(folder / name, HERE / here)} scenarios")
    if (folder / "cel" / "vectors.jsonl").is_file():
        found = True
        print(f"cel: {refresh_vectors(folder / 'cel', folder / '1.37' / 'cel', HERE / 'cel')} other answers in 1.37")
    if not found:
        print(f"{folder} has none of the folders {', '.join([*SCENARIOS, 'cel'])}", file=sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
