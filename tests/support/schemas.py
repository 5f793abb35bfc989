# SPDX-License-Identifier: Apache-2.0
"""The JSON schemas that Kubernetes publishes with each release, from the package kubernetes_validate.

Its own `validate` reads the release's definitions, 1.6 MB, for every object; here they are read once.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator
from referencing import Registry, Resource


def validate(value: dict[str, Any], release: str) -> None:
    """Raises jsonschema.ValidationError unless `value` is as the schema of this release (`1.37`) says, without unknown
    fields.
    """
    _validator(release, value["kind"], value["apiVersion"]).validate(value)


@cache
def _validator(release: str, kind: str, api_version: str) -> Any:
    group, _, version = api_version.rpartition("/")
    name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], version)))
    schema = _read(release, name)
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(release))


@cache
def _definitions(release: str) -> Registry[Any]:
    resource: Resource[Any] = Resource.from_contents(_read(release, "_definitions"))
    registry: Registry[Any] = resource @ Registry()
    return registry.crawl()


def _read(release: str, name: str) -> Any:
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    return json.loads((schemas / f"v{release}.0-local-strict/{name}.json").read_bytes())
