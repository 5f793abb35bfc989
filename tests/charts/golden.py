# SPDX-License-Identifier: Apache-2.0
"""The renderings that were reviewed: `python -m tests.charts.golden` writes them anew, and git shows what changed.

defaults.yaml is what an install without values makes on the newest Kubernetes, without the labels that every object
has. Every other file is the difference to that, object by object: of the values in charts/dra-driver-gpu/ci, or of an
older release to the next one.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path

import yaml

from .rendering import JSON, MINORS, NEWEST, VALUES, render

FOLDER = Path(__file__).with_name("golden")

Rendering = dict[str, str]
"""`Kind name` -> the object as YAML."""


def golden() -> Iterator[tuple[str, str]]:
    """(file name, text) of each; where nothing is different there is no file."""
    defaults = _rendering(render({}))
    yield "defaults.yaml", "---\n".join(defaults.values())
    for name, values in VALUES.items():
        if difference := _difference(defaults, _rendering(render(values))):
            yield f"{name}.diff", difference
    newer = defaults
    for minor in sorted(MINORS, reverse=True)[1:]:
        older = _rendering(render({}, minor))
        if difference := _difference(newer, older):
            yield f"kubernetes-1.{minor}.diff", difference
        newer = older


def _rendering(objects: list[JSON]) -> Rendering:
    return {
        f"{one['kind']} {one['metadata']['name']}": yaml.dump(_plain(one), Dumper=yaml.CSafeDumper, width=120)
        for one in objects
    }


def _plain(value: JSON) -> JSON:
    """Without the labels that the chart gives to everything."""
    meta = {**value["metadata"]}
    labels = {key: text for key, text in meta.pop("labels").items() if "/" not in key}
    return {**value, "metadata": {**meta, **({"labels": labels} if labels else {})}}


def _difference(before: Rendering, after: Rendering) -> str:
    """What is gone is named, what is new is shown, what is different is a unified diff."""
    gone = [f"- {name}\n" for name in before if name not in after]
    new = [f"+ {name}\n{after[name]}" for name in after if name not in before]
    changed = [
        f"! {name}\n{_lines(before[name], after[name])}"
        for name in after
        if name in before and before[name] != after[name]
    ]
    return "".join([*gone, *changed, *new])


def _lines(before: str, after: str) -> str:
    _, _, *lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), n=2)
    return "".join(lines)


def main() -> None:
    """Write them all; files of renderings that are no more are removed."""
    FOLDER.mkdir(exist_ok=True)
    texts = dict(golden())
    for path in FOLDER.iterdir():
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{len(texts)} files in {FOLDER}, of Kubernetes 1.{NEWEST}")


if __name__ == "__main__":
    main()
