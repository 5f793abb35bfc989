# SPDX-License-Identifier: Apache-2.0
"""The chart, rendered by Helm's own engine as for a cluster of a given Kubernetes release."""

import json
import pickle
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import helm_python
import yaml
from helm_python import _native

JSON = dict[str, Any]

CHART = Path(__file__).parents[2] / "charts/dra-driver-gpu"
NAMESPACE = "dra-driver-gpu"
MINORS = (32, 33, 34, 35, 36, 37)
NEWEST = MINORS[-1]
VALUES: Mapping[str, JSON] = {
    path.name.removesuffix("-values.yaml"): yaml.load(path.read_bytes(), yaml.CSafeLoader)
    for path in sorted((CHART / "ci").glob("*-values.yaml"))
}
SINCE: Mapping[str, int] = {"extended-resources": 34}
"""The first minor release that values are for, where that is not the oldest."""
RENDERINGS = [(name, minor) for name in VALUES for minor in MINORS if minor >= SINCE.get(name, MINORS[0])]


def merged(base: Mapping[str, Any], other: Mapping[str, Any]) -> JSON:
    """`other` over `base`, as Helm merges values."""
    result = dict(base)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


@lru_cache(maxsize=1)
def chart() -> helm_python.Chart:
    """The chart, loaded once."""
    return helm_python.Chart.load(CHART)


def render_files(
    values: JSON,
    minor: int = NEWEST,
    *,
    version: str = "",
    apis: Iterable[str] = (),
    namespace: str = NAMESPACE,
    release: str = "release",
) -> dict[str, str]:
    """File -> text, for Kubernetes 1.`minor` (or exactly `version`) with more `apis` than its own. Raises HelmError."""
    options = {
        "name": release,
        "namespace": namespace,
        "kube_version": version or f"v1.{minor}.0",
        "api_versions": list(apis),
    }
    files: dict[str, str] = json.loads(_rendered(json.dumps(values), json.dumps(options)))
    return {name.removeprefix("dra-driver-gpu/templates/"): text for name, text in files.items()}


@lru_cache(maxsize=1000)
def _rendered(values: str, options: str) -> str:
    # Chart.render has no parameters for what Helm's engine calls capabilities; the function below it has.
    return _native.call_string("helm_render", chart()._raw(), values, options)  # noqa: SLF001 - nothing public does it


def render(values: JSON, minor: int = NEWEST, **options: Any) -> list[JSON]:
    """The objects, hooks included."""
    return objects(render_files(values, minor, **options))


def objects(files: Mapping[str, str]) -> list[JSON]:
    """The objects in rendered files."""
    texts = (text for name, text in sorted(files.items()) if name.endswith(".yaml"))
    return [value for text in texts for value in pickle.loads(_parsed(text))]


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> bytes:
    """The objects of a file, pickled: most files are the same for many values, and parsing takes longest."""
    return pickle.dumps([value for value in yaml.load_all(text, yaml.CSafeLoader) if value])


def find(objects: Iterable[JSON], kind: str, name: str = "") -> JSON:
    """The one object of a kind whose name has `name` in it."""
    (found,) = (one for one in objects if one["kind"] == kind and name in one["metadata"]["name"])
    return found


def refusal(values: JSON, minor: int = NEWEST, **options: Any) -> str:
    """Why Helm does not render these values."""
    try:
        render_files(values, minor, **options)
    except helm_python.HelmError as error:
        return str(error)
    raise AssertionError(f"rendered although {values} cannot work")
