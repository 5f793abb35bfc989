# SPDX-License-Identifier: Apache-2.0
"""A value that is missing is refused by name, or is as if empty; no template stumbles over it.

Values are missing where somebody sets them to null, and after `helm upgrade --reuse-values`, which knows only those of
the chart that was there before: sections that are newer than the first release must not be needed.
"""

import functools
import operator
import re
from collections.abc import Iterable, Iterator
from typing import Any

import helm_python
import pytest
import yaml

from tests.support.schemas import validate

from .custom_kinds import complaints, is_custom
from .rendering import CHART, JSON, NEWEST, VALUES, find, merged, objects, render, render_files

NEEDED_SECTIONS = {
    "image",
    "serviceAccount",
    "deviceClasses",
    "resources",
    "admissionPolicy",
    "kubeletPlugin",
    "controller",
    "webhook",
}
"""Those of the first release without which there is nothing to install. Newer ones do not belong here."""
BASE = merged(
    VALUES["everything"],
    {
        "policy": {"gpus": []},
        "cleanup": {"enabled": False},
        "webhook": {"tls": {"secret": {"name": "x", "caBundle": "eA=="}}},
    },
)
PLATFORM = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/ServiceMonitor")

Path = tuple[str, ...]


def paths(node: JSON, above: Path = ()) -> Iterator[Path]:
    """Every value, sections first; not what Kubernetes defines below affinities, strategies and resources of pods."""
    for key, value in node.items():
        here = (*above, key)
        yield here
        if isinstance(value, dict) and here[-1] not in ("affinity", "strategy") and here[1:][-1:] != ("resources",):
            yield from paths(value, here)


DEFAULTS: JSON = yaml.load((CHART / "values.yaml").read_bytes(), yaml.CSafeLoader)
PATHS = list(paths(DEFAULTS))


def is_switch(path: Path) -> bool:
    """Whether it is true or false by default. Without it, a template may not read other values."""
    return isinstance(functools.reduce(operator.getitem, path, DEFAULTS), bool)


LEAVES = [path for path in PATHS if path not in {path[:-1] for path in PATHS}]


def section_of(path: Path) -> str:
    """The section that a value is in. Values outside of all sections are one more."""
    return path[0] if path[1:] else ""


SECTIONS = sorted({(section_of(path), is_switch(path)) for path in LEAVES})


def without(path: Path, base: JSON) -> JSON:
    """`base`, with null at a path."""
    value: Any = None
    for key in reversed(path):
        value = {key: value}
    found: JSON = merged(base, value)
    return found


def without_all(paths: Iterable[Path], base: JSON) -> JSON:
    """`base`, with null at each of the paths."""
    return functools.reduce(lambda values, path: without(path, values), paths, base)


def nothing_in(value: Any) -> bool:
    """Whether some field is there without a value."""
    if isinstance(value, dict):
        return any(map(nothing_in, value.values()))
    if isinstance(value, list):
        return any(map(nothing_in, value))
    return value is None or (isinstance(value, str) and ("<nil>" in value or "%!" in value))


def missed(values: JSON) -> set[Path]:
    """The paths that the schema refuses to go without. What it does not refuse, is rendered."""
    try:
        render_files(values, apis=PLATFORM)
    except helm_python.HelmError as error:
        text = str(error)
    else:
        return set()
    found = re.findall(r"^- at '(.*)': missing propert(?:y|ies) (.*)$", text, re.MULTILINE)
    assert found, text
    return {(*above.split("/")[1:], name) for above, names in found for name in re.findall(r"'(\w+)'", names)}


def is_needed(path: Path) -> bool:
    """Whether the schema refuses to go without."""
    needed = missed(without(path, BASE))
    assert needed <= {path}
    return bool(needed)


def test_the_sections_that_are_needed_are_those_of_the_first_release() -> None:
    assert {path[0] for path in PATHS if len(path) == 1 and is_needed(path)} == NEEDED_SECTIONS


def assert_valid(values: JSON, base: JSON) -> None:
    """The objects that are other ones than with `base` are valid. Tests of whole renderings look at the others."""
    whole = render_files(base, apis=PLATFORM)
    files = render_files(values, apis=PLATFORM)
    for one in objects({name: text for name, text in files.items() if text != whole.get(name)}):
        assert not nothing_in(one), one
        if is_custom(one):
            assert not complaints(one)
        else:
            validate(one, f"1.{NEWEST}")


@pytest.mark.parametrize("path", [path for path in PATHS if path not in LEAVES or is_switch(path)], ids=".".join)
def test_without_a_section_or_switch_that_is_not_needed_the_objects_are_valid(path: Path) -> None:
    if is_needed(path):
        assert path[0] in NEEDED_SECTIONS
        return
    assert_valid(without(path, BASE), BASE)


@pytest.mark.parametrize("base", [{}, VALUES["cleanup"], BASE], ids=["defaults", "cleanup", "everything"])
@pytest.mark.parametrize(("section", "switches"), SECTIONS)
def test_without_all_values_of_a_section_that_are_not_needed_the_objects_are_valid(
    section: str, switches: bool, base: JSON
) -> None:
    paths = [path for path in LEAVES if (section_of(path), is_switch(path)) == (section, switches)]
    while needed := missed(without_all(paths, base)):
        assert needed <= set(paths)
        assert section in NEEDED_SECTIONS
        paths = [path for path in paths if path not in needed]
    assert_valid(without_all(paths, base), base)


def test_sections_that_are_missing_mean_their_defaults() -> None:
    missing: JSON = {path[0]: None for path in PATHS if len(path) == 1 and not is_needed(path)}
    assert render(missing, apis=PLATFORM) == render({}, apis=PLATFORM)
    assert render_files(missing)["NOTES.txt"] == render_files({})["NOTES.txt"]


def test_a_default_can_be_taken_away() -> None:
    values = {
        "kubeletPlugin": {
            "priorityClassName": None,
            "tolerations": None,
            "affinity": {"nodeAffinity": None},
            "containers": {"kubeletplugin": {"resources": {"limits": None}}},
        }
    }
    pod = find(render(values), "DaemonSet")["spec"]["template"]["spec"]
    assert not {"priorityClassName", "tolerations", "affinity"} & set(pod)
    assert "limits" not in pod["containers"][1]["resources"]
