# SPDX-License-Identifier: Apache-2.0
"""Objects of clusters with NVIDIA's device plugin, as that project's README and charts make them, in few words."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.dryrun.conftest import DryRun

JSON = dict[str, Any]
Migrate = Callable[..., JSON]
"""Objects and bare configurations -> what `dra-dryrun migrate -o json` prints of them, with the exit code in `code`."""

ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}
A100 = "NVIDIA-A100-SXM4-40GB"
T4 = "Tesla-T4"


def node(
    name: str, product: str = "", count: int = 0, *, taints: Any = (), labels: Any = (), **allocatable: Any
) -> JSON:
    """A node with the labels of GPU Feature Discovery (without a product: none); `gpu=8` is `nvidia.com/gpu: "8"`,
    and `mig_1g__5gb=7` is `nvidia.com/mig-1g.5gb: "7"`.
    """
    found = {"kubernetes.io/hostname": name, **dict(labels)}
    if product:
        found |= {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(count)}
    resources = {
        f"nvidia.com/{key.replace('__', '.').replace('_', '-')}": str(value) for key, value in allocatable.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": found},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {**ROOM, **resources}},
    }


def pod(resource: str = "nvidia.com/gpu", count: int = 1, name: str = "gpu-pod", **spec: Any) -> JSON:
    """A pod whose container `cuda` requests a resource."""
    container = {"name": "cuda", "image": "cuda-sample", "resources": {"limits": {resource: count}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def deployment(replicas: int, resource: str = "nvidia.com/gpu", name: str = "servers", **spec: Any) -> JSON:
    """A Deployment of such pods."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pod(resource, **spec)["spec"]}
    selector = {"matchLabels": {"app": name}}
    whole = {"replicas": replicas, "selector": selector, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": whole}


def plugin(*args: str, configs: str = "", default: str = "", fallbacks: str = "named,single", **variables: str) -> JSON:
    """The DaemonSet of the device plugin: the static one, or with a ConfigMap and its sidecar, as of the chart."""
    container: JSON = {"name": "ctr", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.1", "args": list(args)}
    container["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    containers, volumes = [container], []
    if configs:
        container["env"].append({"name": "CONFIG_FILE", "value": "/config/config.yaml"})
        sidecar = {
            "CONFIG_FILE_SRCDIR": "/available-configs",
            "DEFAULT_CONFIG": default,
            "FALLBACK_STRATEGIES": fallbacks,
        }
        env = [{"name": name, "value": value} for name, value in sidecar.items()]
        containers.insert(
            0, {"name": "sidecar", "image": container["image"], "command": ["config-manager"], "env": env}
        )
        volumes = [{"name": "available-configs", "configMap": {"name": configs}}]
    spec = {"containers": containers, "volumes": volumes, "tolerations": [{"operator": "Exists"}]}
    template = {"metadata": {"labels": {"app": "plugin"}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvdp", "namespace": "nvidia-device-plugin"},
        "spec": {"selector": {"matchLabels": {"app": "plugin"}}, "template": template},
    }


def config_map(name: str, **configs: Any) -> JSON:
    """A ConfigMap with a configuration for each name."""
    data = {key: yaml.safe_dump(value) for key, value in configs.items()}
    metadata = {"name": name, "namespace": "nvidia-device-plugin"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def config(strategy: str = "none", **sections: Any) -> JSON:
    """A configuration of the device plugin."""
    return {"version": "v1", "flags": {"migStrategy": strategy}, **sections}


def sharing(replicas: Mapping[str, int], how: str = "timeSlicing", **more: Any) -> JSON:
    """The section `sharing`, with the number of replicas of each resource."""
    resources = [{"name": name, "replicas": count} for name, count in replicas.items()]
    return {how: {**more, "resources": resources}}


def mig_parted(**configs: Any) -> JSON:
    """A mig-parted file; a configuration is a list of (devices, profiles or None)."""
    named = {
        name.replace("_", "-"): [
            {"devices": devices, "mig-enabled": profiles is not None, "mig-devices": profiles or {}}
            for devices, profiles in groups
        ]
        for name, groups in configs.items()
    }
    return {"version": "v1", "mig-configs": named}


def migrating(dryrun: DryRun, folder: Path) -> Migrate:
    """Runs the command on objects, each of which is a file."""

    def run(*objects: JSON, options: tuple[str, ...] = ()) -> JSON:
        for number, one in enumerate(objects):
            (folder / f"{number:02}.yaml").write_text(json.dumps(one), encoding="utf-8")
        code, out, err = dryrun("migrate", folder, "-o", "json", *options)
        assert code in (0, 1), err
        found: JSON = json.loads(out)
        return {**found, "code": code}

    return run


def verdicts(found: JSON) -> dict[str, str]:
    """The verdict on each workload."""
    return {one["name"]: one["verdict"] for one in found["workloads"]}


def given(found: JSON) -> dict[str, list[str]]:
    """With --verify: the node and the devices that each demand gets; nothing if it fits nowhere."""
    return {
        one["name"]: [f"{one['node']}/{device['device']}" for device in one["devices"]]
        for one in found["verification"]["demands"]
    }
