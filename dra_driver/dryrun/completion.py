# SPDX-License-Identifier: Apache-2.0
"""Values that a shell completes: contexts, namespaces, objects of the cluster, types of nodes, and attributes in CEL.

Completion prints no errors. A cluster that does not answer within two seconds gives no values.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from ..errors import DriverError
from ..gpu.simulated import shipped_nodes
from ..kube.api import ApiClient, ConnectionConfigError, Kind, served_versions
from ..kube.api.kubeconfig import parse_kubeconfig
from ..kube.kinds import NAMESPACES, NODES, kind_named
from ..kube.resource import Node, ResourceSlice
from .connection import ClusterChoice, ClusterConnection
from .inventory import from_cluster
from .nodetypes import built_in_nodes, is_node_type, node_types
from .references import key_of_type

_SECONDS: Final = 2.0
"""The time limit for one answer of the API server."""
_ATTRIBUTE: Final = re.compile(r"""(?P<before>.*\.(?P<map>attributes|capacity)\[["'](?P<domain>[^"']+)["']\]\.)\w*""")

Values = Callable[[click.Context], Iterable[str]]


def complete_values(values: Values) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """The completion of a parameter by those of the values that begin with what was typed."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found: list[CompletionItem] = []
        with suppress(DriverError, click.ClickException, OSError):
            found = [CompletionItem(value) for value in sorted(set(values(context))) if value.startswith(incomplete)]
        return found

    return complete


def contexts(context: click.Context) -> Iterator[str]:
    """The contexts of the kubeconfig files."""
    for file in filter(None, _choice(context).files.split(":")):
        for entry in parse_kubeconfig(Path(file)).get("contexts") or []:
            yield str(entry.get("name"))


def namespaces(context: click.Context) -> Iterator[str]:
    """The namespaces of the cluster."""
    with _connected(context) as connection:
        yield from _names(ApiClient(connection), NAMESPACES, "")


def nodes_of_cluster(context: click.Context) -> Iterator[str]:
    """The nodes of the cluster, or the built-in ones if no cluster is configured."""
    if context.params.get("built_in") or not _choice(context).is_configured:
        yield from (node.name for node in built_in_nodes(None) if isinstance(node, Node))
        return
    with _connected(context) as connection:
        yield from _names(ApiClient(connection), NODES, "")


def types_of_nodes(_context: click.Context) -> Iterable[str]:
    """The built-in types of nodes."""
    names = (f"{name}{suffix}" for name in shipped_nodes() for suffix in node_types())
    return (name for name in names if is_node_type(name))


def complete_operand(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes TYPE/NAME with the names of the cluster, and else a file."""
    files = [CompletionItem(incomplete, type="file")]
    word, slash, begin = incomplete.partition("/")
    key = key_of_type(word) if slash else None
    if key is None:
        return files
    found: list[str] = []
    with suppress(DriverError, click.ClickException, OSError), _connected(context) as connection:
        client = ApiClient(connection)
        version = next(served_versions(client, key[0]))
        found = list(_names(client, kind_named(version, key[1], namespaced=True), connection.namespace))
    return [CompletionItem(f"{word}/{name}") for name in found if name.startswith(begin)] or files


def complete_expression(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the name of an attribute or capacity after `device.attributes['gpu.nvidia.com'].`."""
    match = _ATTRIBUTE.fullmatch(incomplete)
    if match is None:
        return []
    names: set[str] = set()
    with suppress(DriverError, click.ClickException, OSError):
        for slice_ in published_slices(context):
            for device in slice_.devices:
                known = device.attributes if match["map"] == "attributes" else device.capacity
                # A name without a domain has that of the driver.
                qualified = (name if "/" in name else f"{slice_.driver}/{name}" for name in known)
                prefix = f"{match['domain']}/"
                names.update(name.removeprefix(prefix) for name in qualified if name.startswith(prefix))
    candidates = (f"{match['before']}{name}" for name in sorted(names))
    return [CompletionItem(candidate) for candidate in candidates if candidate.startswith(incomplete)]


def published_slices(context: click.Context) -> Iterable[ResourceSlice]:
    """The ResourceSlices of the cluster, or of the built-in nodes if no cluster is configured."""
    if context.params.get("built_in") or not _choice(context).is_configured:
        objects = built_in_nodes(None)
    else:
        with _connected(context) as connection:
            objects = tuple(from_cluster(connection, devices_only=True).objects)
    return (object_ for object_ in objects if isinstance(object_, ResourceSlice))


def _choice(context: click.Context) -> ClusterChoice:
    """The cluster that the options before the completed word name."""
    kubeconfig, name, namespace = (
        str(context.params.get(parameter) or "") for parameter in ("kubeconfig", "context", "namespace")
    )
    return ClusterChoice(kubeconfig, name, namespace=namespace, seconds=_SECONDS)


@contextmanager
def _connected(context: click.Context) -> Iterator[ClusterConnection]:
    choice = _choice(context)
    if not choice.is_configured:
        raise ConnectionConfigError("no cluster is configured")
    with closing(ClusterConnection(choice)) as connection:
        yield connection


def _names(client: ApiClient, kind: Kind, namespace: str) -> Iterator[str]:
    items = client.list(kind, namespace=namespace, keep=lambda item: {"metadata": item["metadata"]}).items
    return (str(item["metadata"]["name"]) for item in items)
