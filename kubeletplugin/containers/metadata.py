# SPDX-License-Identifier: Apache-2.0
"""Device metadata files: the attributes of allocated devices, readable in the container (KEP-5304).

There is one file for each claim and base request. It is a stream of JSON objects, one for each version of the format,
the newest first. The files are in the driver's folder; the content of a file determines its path in the container.
The mounts are CDI devices of the claim's own spec, which a container of the request gets in addition to the devices.
So nothing else has to be removed from the runtime.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from dra_driver.kube.resource import AttributeValue, Device, ObjectMeta, ResourceClaim, ResourcePool, ResourceSlice
from dra_driver.kube.resource.codec import V1, encode_slice
from dra_driver.kube.resource.names import is_label
from dra_driver.names import DRIVER_NAME
from dra_driver.process.files import make_folder, names_in, read_file, remove_file, write_file
from kubeletplugin.containers import cdi

log = logging.getLogger(__name__)

VERSIONS: Final = ("v1beta1", "v1alpha1")
"""Versions of metadata.resource.k8s.io, the newest first. A reader uses the first one that it supports."""

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was created from a template, with the name that the pod uses for the claim."""

_CONTAINER_ROOT: Final = PurePosixPath("/var/run/kubernetes.io/dra-device-attributes")
_CONTAINER_FILE: Final = f"{DRIVER_NAME}-metadata.json"
_SEPARATOR: Final = "_"  # is part of neither UIDs nor request names
_SUFFIX: Final = ".json"
_TEMPORARY: Final = ".new"
_MOUNT_OPTIONS: Final = ("ro", "nosuid", "nodev", "bind")

Attributes = Callable[[str], Mapping[str, AttributeValue]]
"""Returns the published attributes of a device of this node, by name."""


def documents(claim: ResourceClaim, attributes: Attributes) -> dict[str, bytes]:
    """The files of an allocated claim, by base request."""
    requests: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for result in claim.allocation.results if claim.allocation is not None else ():
        if result.driver == DRIVER_NAME:
            device: dict[str, Any] = {"driver": result.driver, "pool": result.pool, "name": result.device}
            if published := attributes(result.device):
                device["attributes"] = _encoded(published)
            requests.setdefault(result.base_request, {}).setdefault(result.request, []).append(device)
    return {
        base: _stream(claim, [{"name": name, "devices": devices} for name, devices in named.items()])
        for base, named in requests.items()
    }


def metadata_device(request: str) -> str:
    """The name of the CDI device with the file of `request` in the claim's spec."""
    return f"metadata-{request}"


def metadata_names(uid: str, requests: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The qualified CDI names, by request, that a container needs to get the request's file."""
    return {request: (cdi.claim_device(uid, metadata_device(request)),) for request in requests}


class MetadataFiles:
    """The metadata files below `folder`, whose path must be the same on the host. Thread-safe for different claims.

    Each file is written as a whole and renamed. A running container keeps the file with which it was started. A file
    changes only if the devices were created again, and then the container must be restarted anyway.

    There is no fsync, because after a reboot no claim is prepared. Methods raise OSError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, claim: ResourceClaim, attributes: Attributes) -> None:
        """Write or replace the files of an allocated claim."""
        make_folder(self._folder, mode=0o755)
        for request, content in documents(claim, attributes).items():
            file = self._folder / f"{claim.metadata.uid}{_SEPARATOR}{request}{_SUFFIX}"
            write_file(file, content, file.with_suffix(_TEMPORARY), mode=0o644)  # containers may run as any user

    def requests(self, uid: str) -> list[str]:
        """The base requests of a claim that have a file."""
        return [request for request, _ in self._of(uid)]

    def edits(self, uid: str) -> dict[str, cdi.ContainerEdits]:
        """The mounts for the claim's CDI spec, by the name of the CDI device. A file that cannot be read is removed, so
        that no container gets it.
        """
        found: dict[str, cdi.ContainerEdits] = {}
        for request, file in self._of(uid):
            try:
                found[metadata_device(request)] = _edits(file, request)
            except Exception as error:  # an invalid file affects only this claim
                log.warning("metadata file %s cannot be read and is removed: %r", file, error, extra={"claim_uid": uid})
                remove_file(file)
        return found

    def remove(self, uid: str) -> bool:
        """Remove a claim's files, including incomplete ones. False if there are none."""
        names = [name for name in self._names(_SUFFIX, _TEMPORARY) if name.startswith(f"{uid}{_SEPARATOR}")]
        for name in names:
            remove_file(self._folder / name)
        return bool(names)

    def claims(self) -> list[str]:
        """The UIDs of all claims with files, including incomplete ones."""
        return sorted({name.partition(_SEPARATOR)[0] for name in self._names(_SUFFIX, _TEMPORARY)})

    def _of(self, uid: str) -> list[tuple[str, Path]]:
        """(Base request, file) of a claim."""
        prefix = f"{uid}{_SEPARATOR}"
        names = sorted(name for name in self._names(_SUFFIX) if name.startswith(prefix))
        return [(name.removeprefix(prefix).removesuffix(_SUFFIX), self._folder / name) for name in names]

    def _names(self, *suffixes: str) -> list[str]:
        return [name for name in names_in(self._folder) if _SEPARATOR in name and name.endswith(suffixes)]


def container_path(document: Mapping[str, Any], request: str) -> PurePosixPath:
    """The path in a container of the file of `request` with this content."""
    pod_claim: str | None = document.get("podClaimName")
    name: str = document["metadata"]["name"]
    kind = ("resourceclaims", name) if pod_claim is None else ("resourceclaimtemplates", pod_claim)
    return _CONTAINER_ROOT.joinpath(*kind, request, _CONTAINER_FILE)


def _edits(file: Path, request: str) -> cdi.ContainerEdits:
    """The mount of a file. Raises ValueError, LookupError or TypeError if the file is invalid."""
    data = read_file(file)
    if not data.endswith(b"\n"):
        raise ValueError("it is incomplete")
    newest, *_ = [json.loads(line) for line in data.splitlines()]
    target = container_path(newest, request)
    return cdi.ContainerEdits(mounts=(cdi.Mount(str(file), str(target), _MOUNT_OPTIONS),))


def _pod_claim(claim: ResourceClaim) -> str | None:
    """The pod's name of a claim from a template. Users can write this annotation too, even with `../` in it."""
    name = claim.metadata.annotations.get(POD_CLAIM_NAME, "")
    return name if is_label(name) else None


def _stream(claim: ResourceClaim, requests: list[dict[str, Any]]) -> bytes:
    meta = claim.metadata
    body: dict[str, Any] = {
        "kind": "DeviceMetadata",
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "generation": 1},
    }
    pod_claim = _pod_claim(claim)
    if pod_claim is not None:
        body["podClaimName"] = pod_claim
    body["requests"] = requests
    objects = ({"apiVersion": f"metadata.resource.k8s.io/{version}", **body} for version in VERSIONS)
    return "".join(json.dumps(object_, separators=(",", ":")) + "\n" for object_ in objects).encode()


def _encoded(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    """The attributes in the encoding of ResourceSlices."""
    device = Device("device", attributes=attributes)
    encoded = encode_slice(ResourceSlice(ObjectMeta(), DRIVER_NAME, ResourcePool("", 1, 1), devices=(device,)), V1)
    value: dict[str, Any] = encoded["spec"]["devices"][0]["attributes"]
    return value
