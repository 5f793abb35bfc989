# SPDX-License-Identifier: Apache-2.0
"""The rules by which KubeVirt's virt-launcher finds the device of a machine, restated for tests.

For DRA: pkg/dra/utils.go and pkg/virt-launcher/virtwrap/device/hostdevice/dra of KubeVirt after 1.9.0. For extended
resources: pkg/util/util.go and pkg/virt-launcher/virtwrap/device/hostdevice/addresspool.go.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = "var/run/kubernetes.io/dra-device-attributes"
_SUPPORTED = "metadata.resource.k8s.io/v1alpha1"
_ADDRESS = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class NoDeviceError(Exception):
    """The launcher fails, and the machine does not start."""


def device_of(container: Path, request: str, *, claim: str = "", pod_claim: str = "") -> tuple[str, str]:
    """(`mdev` or `pci`, identifier) of the device that a machine gets for a request, in a container with this root.

    `claim` is the name of a claim, `pod_claim` the machine's name of a claim from a template.
    """
    folder = f"resourceclaims/{claim}" if claim else f"resourceclaimtemplates/{pod_claim}"
    files = sorted((container / ROOT / folder / request).glob("*-metadata.json"))
    if len(files) != 1:
        raise NoDeviceError(f"{len(files)} files")
    devices = [one for one in _supported(files[0].read_text())["requests"] if one["name"] == request]
    if len(devices) != 1 or len(devices[0].get("devices", ())) != 1:
        raise NoDeviceError("not one device")
    attributes = devices[0]["devices"][0].get("attributes", {})
    if mdev := attributes.get("mdevUUID", {}).get("string"):
        return "mdev", mdev
    address = attributes.get("resource.kubernetes.io/pciBusID", {}).get("string")
    if not address:
        raise NoDeviceError("no mdevUUID and no pciBusID")
    return "pci", _checked(address)


def _supported(stream: str) -> Any:
    """The first object of the stream in a version that KubeVirt reads."""
    decoder, rest = json.JSONDecoder(), stream.lstrip()
    while rest:
        value, end = decoder.raw_decode(rest)
        if not value.get("apiVersion"):
            raise NoDeviceError("an object without apiVersion")
        if value["apiVersion"] == _SUPPORTED:
            return value
        rest = rest[end:].lstrip()
    raise NoDeviceError("no version that is supported")


def plugin_devices(environment: Mapping[str, str], *resources: str, mdev: bool = False) -> list[str]:
    """The addresses that a machine gets for its GPUs, each with the `deviceName` of a resource, one after the other. Or
    the UUIDs of mediated devices.
    """
    pools: dict[str, list[str]] = {}
    for resource in resources:
        name = f"{'MDEV_' if mdev else ''}PCI_RESOURCE_{resource.upper().replace('/', '_').replace('.', '_')}"
        pools[resource] = [one for one in environment.get(name, "").removesuffix(",").split(",") if one]
    found = []
    for resource in resources:
        if not pools[resource]:
            raise NoDeviceError(f"no more addresses for {resource}")
        address = pools[resource][0]
        for other in pools.values():
            other[:] = [one for one in other if one != address]
        found.append(address if mdev else _checked(address))
    return found


def _checked(address: str) -> str:
    if not _ADDRESS.fullmatch(address):
        raise NoDeviceError(f"{address} is not an address")
    return address
