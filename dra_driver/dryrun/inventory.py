# SPDX-License-Identifier: Apache-2.0
"""The devices to allocate from: slices in files, a live cluster, or the nodes that come with the driver."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from .. import DRIVER_NAME, __version__
from ..cluster import ApiClient, ApiError, ConfigError, Connection, Kind, load_credentials, newest_dialect
from ..command import InputError
from ..gpu.devices import describe
from ..gpu.inventory import read_inventory
from ..gpu.layout import node_slices
from ..gpu.simulation import SimulatedNode, load_description, shipped_nodes
from ..resource import DeviceClass, Node, ObjectMeta, ResourceSlice
from ..resource.codec import Decoded, DecodeError, decode
from .documents import read_documents
from .workload import decode_document

CLASSES = tuple(
    DeviceClass(
        ObjectMeta(name=name),
        (f"device.driver == '{DRIVER_NAME}' && device.attributes['{DRIVER_NAME}'].type == '{kind}'",),
    )
    for name, kind in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig"))
)
"""The DeviceClasses that the driver's chart installs."""


def from_files(paths: Sequence[str]) -> list[Decoded]:
    """ResourceSlices, and whatever DeviceClasses, Nodes and allocated claims are with them. Raises InputError."""
    objects = [decode_document(document) for document in read_documents(paths)]
    if not any(isinstance(one, ResourceSlice) for one in objects):
        raise InputError(f"--slices {' '.join(paths)}: there is no ResourceSlice in it")
    return objects


def from_cluster(kubeconfig: str | None, context: str | None) -> tuple[list[Decoded], str]:
    """The slices, classes, claims and nodes of a live cluster, and its address. Only reads. Raises InputError."""
    try:
        connection = Connection(load_credentials(kubeconfig, context), f"dra-dryrun/{__version__}")
        client = ApiClient(connection)
        dialect = newest_dialect(client)
        kinds = [
            *(Kind(dialect.api_version, plural) for plural in ("resourceslices", "deviceclasses", "resourceclaims")),
            Kind("v1", "nodes"),
        ]
        names = ("ResourceSlice", "DeviceClass", "ResourceClaim", "Node")
        objects = [
            decode({"apiVersion": kind.api_version, "kind": name, **value})
            for kind, name in zip(kinds, names, strict=True)
            for value in client.list(kind).items
        ]
        return objects, connection.server
    except (ApiError, ConfigError, DecodeError) as error:
        raise InputError(str(error)) from None


def built_in_nodes() -> list[Decoded]:
    """Every node that ships with the driver, once with MIG mode off and once with it on, and nothing in use."""
    return [one for name in shipped_nodes() for node in (name, f"{name}-mig") for one in _simulated(node)]


def with_defaults(objects: Iterable[Decoded]) -> list[Decoded]:
    """The objects, and what goes without saying: the driver's classes, and a Node for each node name of a slice."""
    given = list(objects)
    classes = {one.metadata.name for one in given if isinstance(one, DeviceClass)}
    nodes = {one.name for one in given if isinstance(one, Node)}
    named = {one.node_name: None for one in given if isinstance(one, ResourceSlice) and one.node_name}
    return [
        *given,
        *(one for one in CLASSES if one.metadata.name not in classes),
        *(
            Node(ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))
            for name in named
            if name and name not in nodes
        ),
    ]


def _simulated(name: str) -> Iterator[Decoded]:
    with tempfile.TemporaryDirectory(prefix="dra-dryrun-") as folder:
        node = SimulatedNode.create(Path(folder), load_description(name), name)
        nvml = node.nvml()
        nvml.initialize()
        gpus = describe(read_inventory(nvml, node.driver_root / "sys"))
    for one in node_slices(name, "", gpus):
        yield replace(one, pool=replace(one.pool, generation=1))
