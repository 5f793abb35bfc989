# SPDX-License-Identifier: Apache-2.0
"""TYPE/NAME on the command line: objects of the cluster, named as in kubectl."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..process.command import InputError
from .groups import Key
from .kinds import KINDS

CLAIM: Final[Key] = ("resource.k8s.io", "ResourceClaim")
TEMPLATE: Final[Key] = ("resource.k8s.io", "ResourceClaimTemplate")
POD: Final[Key] = ("", "Pod")

_SHORT: Final = {
    "po": POD,
    "rc": ("", "ReplicationController"),
    "deploy": ("apps", "Deployment"),
    "rs": ("apps", "ReplicaSet"),
    "sts": ("apps", "StatefulSet"),
    "ds": ("apps", "DaemonSet"),
    "cj": ("batch", "CronJob"),
    "claim": CLAIM,
    "claims": CLAIM,
    "claimtemplate": TEMPLATE,
    "claimtemplates": TEMPLATE,
    "template": TEMPLATE,
    "templates": TEMPLATE,
}
"""kubectl's short names, and words for claims and templates, for which kubectl has no short names."""
_NODES: Final = ("no", "node", "nodes")
_FORM: Final = re.compile(r"([a-z][a-z0-9.]*)/([a-z0-9][a-z0-9.-]*)")
_FILES: Final = (".yaml", ".yml", ".json")
_EXAMPLES: Final = "pod, deployment, statefulset, daemonset, job, claim, template, or another workload such as rayjob"


def _types() -> Iterator[tuple[str, Key]]:
    """The words for all types. A kind of Kubernetes comes before a kind of the same name of another project."""
    for key in (*KINDS, CLAIM, TEMPLATE):
        group, kind = key
        for word in (kind.lower(), f"{kind.lower()}s"):
            yield word, key
            if group:
                yield f"{word}.{group}", key


_TYPES: Final[dict[str, Key]] = _SHORT | dict(reversed([*_types()]))


def key_of_type(word: str) -> Key | None:
    """The API group and the kind of a type, None if it is not known."""
    return _TYPES.get(word)


@dataclass(frozen=True, slots=True)
class Reference:
    """An object of the cluster. `text` is what the user wrote."""

    key: Key
    name: str
    text: str


def _exists(path: Path) -> bool:
    """Whether there is a file or folder; False for a name that no file can have."""
    try:
        return path.exists()
    except OSError:
        return False


def references_of(arguments: Iterable[str]) -> dict[str, Reference]:
    """The arguments of the form TYPE/NAME that are not files. Raises InputError for types that are not placed."""
    found: dict[str, Reference] = {}
    words = list(arguments)
    for index, argument in enumerate(words):
        if _exists(Path(argument)):
            continue
        if argument in _TYPES:
            name = words[index + 1] if index + 1 < len(words) else "NAME"
            raise InputError(f"there is no file {argument!r}: an object of the cluster is named {argument}/{name}")
        match = _FORM.fullmatch(argument)
        if match is None or argument.endswith(_FILES) or _exists(Path(argument).parent):
            continue
        word, name = match.groups()
        if word in _NODES:
            raise InputError(f"{argument}: a node is not placed: `dra-dryrun gpus {name}` shows its GPUs")
        if word not in _TYPES:
            raise InputError(
                f"{argument}: there is no such file, and {word} is not a type that fit reads ({_EXAMPLES})"
            )
        found[argument] = Reference(_TYPES[word], name, argument)
    return found
