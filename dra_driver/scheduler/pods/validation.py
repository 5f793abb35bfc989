# SPDX-License-Identifier: Apache-2.0
"""Validation of a new pod: names, volumes, claims, containers and ports, and the order of all errors.

Follows `ValidatePodCreate` of `pkg/apis/core/validation` of Kubernetes 1.36, with its texts, for all fields that
decide scheduling, quotas or limits. Other fields (images, probes, security contexts) are not validated. Pods are JSON
of the form that `form.checked_pod` gives, with the defaults of the API server.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from .names import (
    duplicate,
    forbidden,
    invalid,
    label_errors,
    label_problems,
    named,
    port_name_problems,
    required,
    subdomain_problems,
    unsupported,
)
from .placement import placement_errors, toleration_errors
from .resource_rules import consistency_errors, resource_errors

JSON = Mapping[str, Any]

_MOST_PORT: Final = 65535
_MOST_DEADLINE: Final = (1 << 31) - 1
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_RESTART_POLICIES: Final = ("Always", "Never", "OnFailure")
_PREEMPTION_POLICIES: Final = ("PreemptLowerPriority", "Never")
_WINDOWS: Final = "windows"
_SYSTEMS: Final = ("linux", _WINDOWS)
_ONLY_WITHOUT_USERS: Final = (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC"))
_VOLUMES: Final = {
    name: name
    for name in (
        *("emptyDir", "hostPath", "gitRepo", "gcePersistentDisk", "awsElasticBlockStore", "secret", "nfs", "iscsi"),
        *("glusterfs", "flocker", "persistentVolumeClaim", "rbd", "cinder", "cephfs", "quobyte", "downwardAPI", "fc"),
        *("flexVolume", "configMap", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume"),
        *("azureDisk", "storageos", "projected", "scaleIO", "csi", "ephemeral", "image"),
    )
} | {"cephfs": "cephFS", "downwardAPI": "downwarAPI"}
"""The types of volumes in the order in which they are validated, and how an error about a second one names them."""
_NEEDED: Final = {
    "gcePersistentDisk": ("persistentDisk", ("pdName",)),
    "awsElasticBlockStore": ("awsElasticBlockStore", ("volumeID",)),
    "iscsi": ("iscsi", ("targetPortal", "iqn")),
    "persistentVolumeClaim": ("persistentVolumeClaim", ("claimName",)),
    "rbd": ("rbd", ("monitors", "image")),
    "ephemeral": ("ephemeral", ("volumeClaimTemplate",)),
}
"""Fields that identify the volumes of some types, and the path in errors about them."""


def pod_errors(pod: JSON) -> Iterator[str]:
    """Why the API server refuses a pod, one text for each error. Maps are validated in the order of their keys."""
    metadata, spec = pod["metadata"], pod["spec"]
    claims = [claim["name"] for claim in spec.get("resourceClaims") or () if claim.get("name")]
    yield from _metadata(metadata)
    yield from _volumes(spec.get("volumes") or (), metadata.get("name") or "")
    yield from _claims(spec.get("resourceClaims") or ())
    yield from _containers(spec, claims)
    yield from _init_containers(spec, claims)
    yield from _own_resources(spec, claims)
    yield from _host_network(spec)
    yield from label_errors(spec.get("nodeSelector") or {}, "spec.nodeSelector")
    yield from placement_errors(spec)
    yield from _host_users(spec)
    yield from _scalars(spec)


def _metadata(metadata: JSON) -> Iterator[str]:
    name, generated = metadata.get("name") or "", metadata.get("generateName") or ""
    if generated:
        whole = f"{generated[:-2]}a" if len(generated) > 1 and generated.endswith("-") else generated
        yield from named("metadata.generateName", generated, subdomain_problems(whole))
    if not name and not generated:
        yield required("metadata.name", "name or generateName is required")
    elif name:
        yield from named("metadata.name", name, subdomain_problems(name))
    namespace = metadata.get("namespace") or ""
    yield from named("metadata.namespace", namespace, label_problems(namespace))
    yield from label_errors(metadata.get("labels") or {}, "metadata.labels")


def _volumes(volumes: Sequence[JSON], pod: str) -> Iterator[str]:
    made = {f"{pod}-{volume.get('name') or ''}" for volume in volumes if pod and "ephemeral" in volume}
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        path, name = f"spec.volumes[{index}]", volume.get("name") or ""
        errors = [*_volume_source(volume, path, pod), *_unique_label(name, f"{path}.name", seen)]
        if not errors:
            seen.add(name)
        yield from errors
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName") or ""
        if claim in made:
            text = "must not reference a PVC that gets created for an ephemeral volume"
            yield invalid(f"{path}.persistentVolumeClaim.claimName", claim, text)


def _unique_label(name: str, path: str, seen: Iterable[str]) -> Iterator[str]:
    if not name:
        yield required(path)
    else:
        yield from named(path, name, label_problems(name))
    if name in seen:
        yield duplicate(path, name)


def _volume_source(volume: JSON, path: str, pod: str) -> Iterator[str]:
    kinds = [kind for kind in _VOLUMES if kind in volume]
    for kind in kinds[:1]:
        place, needed = _NEEDED.get(kind, ("", ()))
        for field in needed:
            if not volume[kind].get(field) and volume[kind].get(field) != {}:
                yield required(f"{path}.{place}.{field}")
    for kind in kinds[1:]:
        yield forbidden(f"{path}.{_VOLUMES[kind]}", "may not specify more than 1 volume type")
    name = volume.get("name") or ""
    if "ephemeral" in kinds[:1] and pod and name:
        claim = f"{pod}-{name}"
        for problem in subdomain_problems(claim):
            yield invalid(f"{path}.name", name, f'PVC name "{claim}": {problem}')


def _claims(claims: Sequence[JSON]) -> Iterator[str]:
    seen: set[str] = set()
    sources = ("resourceClaimName", "resourceClaimTemplateName")
    for index, claim in enumerate(claims):
        path, name = f"spec.resourceClaims[{index}]", claim.get("name") or ""
        if not name:
            yield required(f"{path}.name")
        elif name in seen:
            yield duplicate(f"{path}.name", name)
        else:
            yield from named(f"{path}.name", name, label_problems(name))
            seen.add(name)
        given = [source for source in sources if source in claim]
        shown = {"Name": name, **{source[0].upper() + source[1:]: claim.get(source) for source in sources}}
        if len(given) > 1:
            yield invalid(path, shown, f"at most one of `{sources[0]}` or `{sources[1]}` may be specified")
        if not given:
            yield invalid(path, shown, f"must specify one of: `{sources[0]}`, `{sources[1]}`")
        for source in given:
            yield from named(f"{path}.{source}", claim[source], subdomain_problems(claim[source]))


def _containers(spec: JSON, claims: Sequence[str]) -> Iterator[str]:
    containers = spec.get("containers") or ()
    if not containers:
        yield required("spec.containers")
    seen: set[str] = set()
    for index, container in enumerate(containers):
        path, name = f"spec.containers[{index}]", container.get("name") or ""
        yield from _container(container, path, claims)
        if name in seen:
            yield duplicate(f"{path}.name", name)
        seen.add(name)
        yield from _restart_policy(container, path)
    yield from _host_ports(enumerate(containers), "spec.containers")


def _init_containers(spec: JSON, claims: Sequence[str]) -> Iterator[str]:
    seen = {container.get("name") or "" for container in spec.get("containers") or ()}
    for index, container in enumerate(spec.get("initContainers") or ()):
        path, name = f"spec.initContainers[{index}]", container.get("name") or ""
        yield from _container(container, path, claims)
        yield from _restart_policy(container, path)
        if name in seen:
            yield duplicate(f"{path}.name", name)
        elif name:
            seen.add(name)
        # init containers run one after the other: each is validated alone, as if it were the first
        yield from _host_ports([(0, container)], "spec.initContainers")


def _container(container: JSON, path: str, claims: Sequence[str]) -> Iterator[str]:
    name = container.get("name") or ""
    yield from named(f"{path}.name", name, label_problems(name)) if name else iter([required(f"{path}.name")])
    yield from _ports(container.get("ports") or (), f"{path}.ports")
    yield from resource_errors(container.get("resources") or {}, f"{path}.resources", claims)


def _ports(ports: Sequence[JSON], path: str) -> Iterator[str]:
    names: set[str] = set()
    for index, port in enumerate(ports):
        here, name = f"{path}[{index}]", port.get("name") or ""
        problems = list(port_name_problems(name)) if name else []
        yield from named(f"{here}.name", name, iter(problems))
        if name and not problems:
            if name in names:
                yield duplicate(f"{here}.name", name)
            names.add(name)
        for field in ("containerPort", "hostPort"):
            number = port.get(field) or 0
            if not number and field == "containerPort":
                yield required(f"{here}.{field}")
            elif not 0 <= number <= _MOST_PORT:
                yield invalid(f"{here}.{field}", number, f"must be between 1 and {_MOST_PORT}, inclusive")
        protocol = port.get("protocol") or "TCP"
        if protocol not in _PROTOCOLS:
            yield unsupported(f"{here}.protocol", protocol, _PROTOCOLS)


def _host_ports(containers: Iterable[tuple[int, JSON]], path: str) -> Iterator[str]:
    taken: set[str] = set()
    for index, container in containers:
        for number, port in enumerate(container.get("ports") or ()):
            if port.get("hostPort"):
                shown = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{port['hostPort']}"
                if shown in taken:
                    yield duplicate(f"{path}[{index}].ports[{number}].hostPort", shown)
                taken.add(shown)


def _restart_policy(container: JSON, path: str) -> Iterator[str]:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules") or ()
    if policy is None and rules:
        yield required(f"{path}.restartPolicy", "must specify restartPolicy when restart rules are used")
    elif policy is not None and policy not in _RESTART_POLICIES:
        yield unsupported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)


def _own_resources(spec: JSON, claims: Sequence[str]) -> Iterator[str]:
    own, path = spec.get("resources"), "spec.resources"
    if own is None:
        return
    if (spec.get("os") or {}).get("name") == _WINDOWS:
        yield forbidden(path, "may not be set for a windows pod")
        return
    if "claims" in own:
        yield forbidden(f"{path}.claims", "claims may not be set for Resources at pod-level")
    yield from resource_errors(own, path, claims, of_pod=True)
    yield from consistency_errors(spec, path)


def _host_network(spec: JSON) -> Iterator[str]:
    for index, container in enumerate(spec.get("containers") or ()) if spec.get("hostNetwork") else ():
        for number, port in enumerate(container.get("ports") or ()):
            if (port.get("hostPort") or 0) != (port.get("containerPort") or 0):
                path = f"spec.containers[{index}].ports[{number}].hostPort"
                yield invalid(path, port.get("hostPort") or 0, "must match `containerPort` when `hostNetwork` is true")


def _host_users(spec: JSON) -> Iterator[str]:
    if spec.get("hostUsers") is not False:
        return
    for field, shown in _ONLY_WITHOUT_USERS:
        if spec.get(field):
            yield forbidden(f"spec.{shown}", "when `hostUsers` is false")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            if container.get("volumeDevices"):
                yield forbidden(f"spec.{kind}[{index}].volumeDevices", "when `hostUsers` is false")


def _scalars(spec: JSON) -> Iterator[str]:
    node = spec.get("nodeName") or ""
    if node:
        yield from named("spec.nodeName", node, subdomain_problems(node))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _MOST_DEADLINE:
        yield invalid("spec.activeDeadlineSeconds", deadline, f"must be between 1 and {_MOST_DEADLINE}, inclusive")
    yield from toleration_errors(spec.get("tolerations") or ())
    for field in ("priorityClassName", "runtimeClassName"):
        name = spec.get(field)
        if name or (name is not None and field == "runtimeClassName"):
            yield from named(f"spec.{field}", name, subdomain_problems(name))
    policy = spec.get("preemptionPolicy")
    if policy == "":
        yield required("spec.preemptionPolicy")
    elif policy is not None and policy not in _PREEMPTION_POLICIES:
        yield unsupported("spec.preemptionPolicy", policy, _PREEMPTION_POLICIES)
    if "overhead" in spec:
        yield from resource_errors({"limits": spec["overhead"]}, "spec.overhead")
    yield from _system(spec)
    if node and spec.get("schedulingGates"):
        yield forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _system(spec: JSON) -> Iterator[str]:
    """The errors about the operating system, and about fields that pods for Windows cannot have."""
    name = (spec.get("os") or {}).get("name") or ""
    if "os" in spec and not name:
        yield required("spec.os.name")
    elif name and name not in _SYSTEMS:
        yield unsupported("spec.os", name, _SYSTEMS)
    elif name == _WINDOWS:
        for field in ("hostUsers", "hostPID", "hostIPC"):
            if field in spec if field == "hostUsers" else spec.get(field):
                yield forbidden(f"spec.{field}", "cannot be set for a windows pod")
