# SPDX-License-Identifier: Apache-2.0
"""The Node object that kubelet keeps: labels, addresses, capacity and the Ready condition."""

import platform
from collections.abc import Mapping
from typing import Any

from .podstatus import HOST_IP, timestamp

KUBELET_VERSION = "v1.36.2"
"""The release whose behaviour this kubelet has."""


def default_labels(name: str) -> Mapping[str, str]:
    """What kubelet labels every node with."""
    return {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": _architecture()}


def node_status(name: str, now: float) -> Mapping[str, Any]:
    """The status of a node that is ready for pods."""
    resources = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "addresses": [{"type": "InternalIP", "address": HOST_IP}, {"type": "Hostname", "address": name}],
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "stand-in kubelet is posting ready status",
                "lastHeartbeatTime": timestamp(now),
                "lastTransitionTime": timestamp(now),
            }
        ],
        "nodeInfo": {
            "architecture": _architecture(),
            "bootID": "",
            "containerRuntimeVersion": "sandbox://1.0.0",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": KUBELET_VERSION,
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "stand-in",
            "systemUUID": "",
        },
    }


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
