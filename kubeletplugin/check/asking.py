# SPDX-License-Identifier: Apache-2.0
"""Asking the API server. Nothing is stored there: gates are found by dry runs, permissions by reviews.

Each question stands alone; one that is refused leaves the others.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dra_driver import DRIVER_NAME, __version__
from dra_driver.cluster import (
    NODES,
    ApiClient,
    ApiError,
    ConfigError,
    Connection,
    Kind,
    NotFoundError,
    load_credentials,
)
from dra_driver.cluster.features import GATES as GATES_BY_FLAG
from dra_driver.cluster.features import OPTIONAL, probe_features
from dra_driver.resource.codec import DIALECTS, GROUP

from .cluster import API, GATES, NODE, PERMISSIONS, PERMITTED, WANTED, ClusterFacts, NodeFacts, Permission

_REVIEWS = Kind("authorization.k8s.io/v1", "selfsubjectaccessreviews")
_SECONDS = 10.0


def ask_cluster(kubeconfig: str | None, node_name: str, in_pod: bool) -> ClusterFacts:
    """Everything that `cluster_findings` wants to know."""
    try:
        connection = Connection(load_credentials(kubeconfig), f"dra-check/{__version__}", read_seconds=_SECONDS)
    except (ApiError, ConfigError) as error:
        return ClusterFacts(error=str(error), configured=bool(kubeconfig) or in_pod, has_credentials=False)
    with connection:
        client = ApiClient(connection)
        try:
            version = str(client.get_path("/version").get("gitVersion", ""))
        except ApiError as error:
            return ClusterFacts(connection.server, error=str(error))
        return _ask(client, connection.server, version, node_name)


def _ask(client: ApiClient, server: str, version: str, node_name: str) -> ClusterFacts:
    untold: dict[str, str] = {}
    served: tuple[str, ...] = ()
    gates: Mapping[str, bool] = {}
    denied: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    node = None
    try:
        served = _served(client)
    except ApiError as error:
        untold[API] = str(error)
    dialect = next((one for one in DIALECTS if one.version in served), None)
    if dialect is not None:
        try:
            features = probe_features(client, dialect, DRIVER_NAME, node_name or "probe")
            gates = {gate: getattr(features, flag) for flag, gate in GATES_BY_FLAG.items() if flag not in OPTIONAL}
        except ApiError as error:
            untold[GATES] = str(error)
    try:
        denied, reduced = _denied(client, PERMITTED), _denied(client, WANTED)
    except ApiError as error:
        untold[PERMISSIONS] = str(error)
    if not node_name:
        untold[NODE] = "no Node was named"
    else:
        try:
            node = _node(client.get(NODES, node_name))
        except ApiError as error:
            untold[NODE] = str(error)
    return ClusterFacts(
        server, version=version, served=served, gates=gates, denied=denied, reduced=reduced, node=node, untold=untold
    )


def _served(client: ApiClient) -> tuple[str, ...]:
    try:
        group = client.get_path(f"/apis/{GROUP}")
    except NotFoundError:
        return ()
    return tuple(str(version["version"]) for version in group.get("versions") or [])


def _denied(client: ApiClient, permissions: Iterable[Permission]) -> tuple[str, ...]:
    """`verb resource` of each that an access review of this identity does not allow."""
    denied = []
    for one in permissions:
        resource, _, subresource = one.resource.partition("/")
        place = {"group": one.group, "resource": resource, "subresource": subresource, "name": one.name}
        for verb in one.verbs:
            answer = client.create(
                _REVIEWS,
                {
                    "apiVersion": _REVIEWS.api_version,
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": {**place, "verb": verb}},
                },
            )
            if not (answer.get("status") or {}).get("allowed"):
                denied.append(f"{verb} {one.resource}")
    return tuple(denied)


def _node(value: Mapping[str, Any]) -> NodeFacts:
    info = (value.get("status") or {}).get("nodeInfo") or {}
    return NodeFacts(
        kubelet=str(info.get("kubeletVersion") or ""),
        runtime=str(info.get("containerRuntimeVersion") or ""),
        kernel=str(info.get("kernelVersion") or ""),
        image=str(info.get("osImage") or ""),
        arguments=dict(_arguments((value.get("metadata") or {}).get("annotations") or {})),
    )


def _arguments(annotations: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What k3s and rke2 were started with, as they write it to the Node: a list as JSON."""
    for distribution in ("k3s", "rke2"):
        with contextlib.suppress(ValueError):  # somebody else's annotation
            found = json.loads(annotations.get(f"{distribution}.io/node-args", ""))
            if isinstance(found, list):
                yield distribution, tuple(map(str, found))
