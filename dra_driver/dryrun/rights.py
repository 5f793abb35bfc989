# SPDX-License-Identifier: Apache-2.0
"""The rights that the commands need in a cluster, and which of them are missing.

The ClusterRole of the chart's value `dryRun.clusterRole` has all of them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ..kube.api import ApiClient, ApiError, Kind, StatusError
from ..kube.kinds import NODES

FORBIDDEN: Final = 403
_NAME: Final = "dra-dryrun-asks-for-its-rights"
"""The name of an object that does not exist: the server tells whether it may be read."""

Right = Callable[[ApiClient], object]
"""A request that the server refuses with status 403 without the right."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The objects that a command reads besides devices: the pods, nodes and other objects that decide about whole pods,
    all Workloads and PodGroups (`groups`), single claims and templates that other objects refer to, and changes of all
    objects.
    """

    whole_pods: bool = False
    groups: bool = False
    references: bool = False
    watches: bool = False


DEVICES: Final = Needs()
"""Only devices are read."""


def missing(client: ApiClient, rights: Iterable[Right]) -> Iterator[str]:
    """The actions that are not allowed, in terms of RBAC, such as `list nodes`."""
    for right in rights:
        try:
            right(client)
        except StatusError as error:
            if error.status == FORBIDDEN:
                yield error.action
        except ApiError:
            return  # the server does not answer any more


def rights(listed: Iterable[Kind], referred: Iterable[Kind], needs: Needs) -> Iterator[Right]:
    """The rights to read all objects of the kinds `listed`, and single objects of the kinds that other objects refer
    to.
    """
    for kind in listed:
        yield _to_list(kind)
        if needs.watches:
            yield _to_watch(kind)
    for kind in referred if needs.references else ():
        yield _to_get(kind)


def advice(actions: Iterable[str], needs: Needs) -> str:
    """The advice about missing rights."""
    role = "the chart's value dryRun.clusterRole=true makes a ClusterRole with all rights"
    alone = needs.whole_pods and set(actions) <= {f"{verb} {NODES.plural}" for verb in ("list", "watch")}
    return f"with --devices-only, nodes are not read; {role}" if alone else role


def _to_list(kind: Kind) -> Right:
    return lambda client: client.get_path(f"{kind.path()}?limit=1")


def _to_watch(kind: Kind) -> Right:
    return lambda client: client.watch(kind, "0").end()


def _to_get(kind: Kind) -> Right:
    return lambda client: client.get(kind, _NAME, "default")
