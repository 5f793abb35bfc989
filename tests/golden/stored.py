# SPDX-License-Identifier: Apache-2.0
"""Scenarios as files: a category is one file here, and a folder where the scenarios come from.

Here, `<category>.yaml` maps the name of each scenario to two texts: `cluster` is YAML, and `answer` is JSON. At the
source, these are two files: `<category>/<name>.yaml` and `<category>/<name>.expect.json`. Both forms are read, and
`python -m tests.golden.refresh` converts the second form to the first.

The clusters of generated scenarios, which are two thirds of all text, have one line of JSON for each object here. It is
still YAML, but as JSON it is read in a twentieth of the time.
"""

import contextlib
import itertools
import json
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

GENERATED: Final = "gen-"
"""How the names of scenarios begin that a program has made."""
_OBJECT: Final = "--- {"
"""How the line of an object in JSON begins."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class StoredScenario:
    """The texts of one scenario: a cluster as YAML documents, and the answer of Kubernetes as JSON."""

    category: str
    name: str
    cluster: str
    answer: str

    def __str__(self) -> str:
        return f"{self.category}/{self.name}"

    def documents(self) -> list[dict[str, Any]]:
        """The objects of the cluster."""
        lines = [line for line in self.cluster.splitlines() if not line.startswith("#")]
        if all(line.startswith(_OBJECT) for line in lines):
            with contextlib.suppress(json.JSONDecodeError):  # YAML in braces, from a source
                return [json.loads(line.removeprefix("---")) for line in lines]
        return [document for document in yaml.load_all(self.cluster, Loader=LOADER) if document is not None]

    def expected(self) -> dict[str, Any]:
        """The answer of Kubernetes."""
        decoded: dict[str, Any] = json.loads(self.answer)
        return decoded


def categories(folder: Path) -> list[str]:
    """The names of all categories of a folder, sorted."""
    single = {path.stem for path in folder.glob("*.yaml")}
    return sorted(single | {path.parent.name for path in folder.glob("*/*.yaml")})


def category_scenarios(folder: Path, category: str) -> list[StoredScenario]:
    """The scenarios of one category, sorted by name."""
    path = folder / f"{category}.yaml"
    if path.is_file():
        content = yaml.load(path.read_bytes(), Loader=LOADER)
        return [StoredScenario(category, name, **texts) for name, texts in sorted(content.items())]
    return [
        StoredScenario(
            category, file.stem, file.read_text("utf-8"), file.with_suffix(".expect.json").read_text("utf-8")
        )
        for file in sorted((folder / category).glob("*.yaml"))
    ]


def stored_scenarios(folder: Path) -> Iterator[StoredScenario]:
    """All scenarios of a folder, sorted by category and name."""
    for category in categories(folder):
        yield from category_scenarios(folder, category)


def write_category(path: Path, scenarios: Iterable[StoredScenario]) -> None:
    """Write the file of one category. Raises ValueError if a file cannot hold one of the scenarios unchanged."""
    scenarios = [_with_json(scenario) for scenario in sorted(scenarios, key=lambda scenario: scenario.name)]
    parts = ["# SPDX-License-Identifier: Apache-2.0\n"]
    for scenario in scenarios:
        parts += [
            f"{json.dumps(scenario.name)}:\n",
            _block("cluster", scenario.cluster),
            _block("answer", scenario.answer),
        ]
    path.write_text("".join(parts), "utf-8")
    for scenario, read in zip(scenarios, category_scenarios(path.parent, path.stem), strict=True):
        if scenario != read:
            raise ValueError(f"{path}: {scenario} is not read as it was written")


def _with_json(scenario: StoredScenario) -> StoredScenario:
    """The scenario, with its objects in JSON if it is generated. Comments before the first object are kept."""
    if not scenario.name.startswith(GENERATED):
        return scenario
    lines = itertools.takewhile(lambda line: line.startswith("#"), scenario.cluster.splitlines())
    documents = scenario.documents()
    cluster = "".join([*(f"{line}\n" for line in lines), *(f"--- {json.dumps(value)}\n" for value in documents)])
    converted = replace(scenario, cluster=cluster)
    if converted.documents() != documents:
        raise ValueError(f"{scenario} has objects that JSON cannot hold")
    return converted


def _block(key: str, text: str) -> str:
    """A key with a text of several lines. Its indentation is given, because the text may begin with a space."""
    keep = "" if text.endswith("\n") and not text.endswith("\n\n") else "+" if text.endswith("\n") else "-"
    end = "" if text.endswith("\n") else "\n"
    return f"  {key}: |2{keep}\n{textwrap.indent(text, '    ', lambda line: bool(line.strip(chr(10))))}{end}"
