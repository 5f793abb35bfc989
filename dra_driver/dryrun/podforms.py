# SPDX-License-Identifier: Apache-2.0
"""The forms of the table `kinds`: what controllers make of fields that are not simply a pod template.

Each function reads a part of an object, and gives the pods that the controller of its kind would make of it, as far as
they matter for scheduling. The rules are those of the controllers; each function names its own.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..kube.resource.codec import DecodeError, json_type
from ..scheduler.pods import POD_FIELDS
from .documents import JSON, each, within
from .groups import Form, FormPart, PodGroup, joined, merged, whole_number
from .machines import machine
from .workflows import workflow

_IMAGE: Final = "set-by-the-controller"
"""The image of a container whose image the controller chooses. It decides nothing."""
_GPU: Final = "nvidia.com/gpu"
_KSERVE: Final = "serving.kserve.io"
_TRAINER: Final = "trainer.kubeflow.org"

_MODELS: Final = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn", "tensorflow", "triton"),
    *("xgboost", "alibi", "art"),
)
"""Fields of a component that are its container: the model and, before it, one field for each framework."""

_MANAGED: Final = f"{_KSERVE}/exp-dra-"

_OPERATORS: Final = {
    "Equal": "==",
    "NotEqual": "!=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}

_ANCESTOR: Final = f"{_TRAINER}/trainjob-ancestor-step"

_OF_REVISION: Final = ("containerConcurrency", "timeoutSeconds", "responseStartTimeoutSeconds", "idleTimeoutSeconds")
"""Fields of the spec of a revision that pods do not have."""


def template(part: FormPart) -> Iterator[PodGroup]:
    """A pod template, or a pod."""
    spec = part.value.get("spec")
    if spec is None:
        raise DecodeError(joined(part.path, "spec"), "is missing")
    yield _group(part, "spec", _object(spec, joined(part.path, "spec")), within(part.value, "metadata"))


def pod_spec(part: FormPart) -> Iterator[PodGroup]:
    """The spec of a pod, without a template around it."""
    spec = {name: field for name, field in part.value.items() if name in POD_FIELDS}
    unknown = ("its resourceSharing was not evaluated: claims that its pods share",) if _shares(part.whole) else ()
    if "containers" not in spec:
        return
    yield replace(_group(part, "", spec), unknown=unknown)


def _shares(whole: JSON) -> bool:
    """Whether claims are made for several pods of a PodCliqueSet (Grove)."""
    inner = within(whole, "spec", "template")
    places = (inner, *each(inner, "cliques"), *each(inner, "podCliqueScalingGroups"))
    return any(place.get("resourceSharing") for place in places)


def clique(part: FormPart) -> Iterator[PodGroup]:
    """A clique of a PodCliqueSet, whose pods are there once for each replica of its scaling group (Grove)."""
    inner = within(part.whole, "spec", "template")
    for index, group in enumerate(each(inner, "podCliqueScalingGroups")):
        if part.role in (group.get("cliqueNames") or ()):
            path = f"spec.template.podCliqueScalingGroups[{index}]"
            part = replace(part, count=part.count * whole_number(group, "replicas", 1, path))
    yield from pod_spec(part) if part.count else ()


def rollout(part: FormPart) -> Iterator[PodGroup]:
    """A template, or the reference to the Deployment that has it (Argo Rollouts)."""
    if "template" in part.value or "workloadRef" not in part.value:
        inner = part.value.get("template")
        if inner is None:
            raise DecodeError(joined(part.path, "template"), "is missing")
        where = joined(part.path, "template")
        yield from template(replace(part, value=_object(inner, where), path=where))
        return
    name = str(within(part.value, "workloadRef").get("name"))
    place = (("apps", "Deployment"), part.namespace, name)
    found = part.library.find(*place)
    if found is None:
        why = part.library.reason(*place)
        yield _unknown(part, "workloadRef", f"Deployment {name}, which has its pod template, {why}")
        return
    spec = within(found, "spec", "template", "spec")
    yield replace(_group(part, "workloadRef", spec, within(found, "spec", "template", "metadata")))


def revision(part: FormPart) -> Iterator[PodGroup]:
    """A pod template whose number of pods is in annotations, and whose container needs no name (Knative Serving)."""
    prefix = "autoscaling.knative.dev/"
    annotations = within(part.value, "metadata", "annotations")
    wanted = [
        _annotation(annotations, f"{prefix}{name}", joined(part.path, "metadata.annotations"))
        for name in ("min-scale", "minScale", "initial-scale", "initialScale")
    ]
    for group in template(replace(part, count=part.count * max(1, *wanted))):
        containers = [{"name": "user-container", **container} for container in each(group.spec, "containers")]
        spec = {name: field for name, field in group.spec.items() if name not in _OF_REVISION}
        notes = () if max(wanted[:2]) else ("it is evaluated at its initial scale, and may be scaled from 0",)
        yield replace(group, spec={**spec, "containers": containers}, notes=notes)


def _annotation(annotations: JSON, name: str, path: str) -> int:
    text = str(annotations.get(name) or "0")
    if not (text.isascii() and text.isdigit()):
        raise DecodeError(joined(path, name), f"must be a whole number, not {text!r}")
    return int(text)


def component(part: FormPart) -> Iterator[PodGroup]:
    """A component of an InferenceService: the fields of a pod beside those of the model (KServe)."""
    count = part.count * max(1, whole_number(part.value, "minReplicas", 1, part.path))
    name = next((model for model in _MODELS if isinstance(part.value.get(model), dict)), "")
    own = {key: field for key, field in part.value.items() if key in POD_FIELDS}
    serving, unknown = _serving_runtime(part, within(part.value, name)) if name else ({}, ())
    moved: dict[str, str] = {}
    if name:
        fields = ("args", "command", "env", "image", "ports", "resources", "volumeMounts")
        container = {key: field for key, field in part.value[name].items() if key in fields}
        own["containers"] = [{"name": "kserve-container", **container}, *each(own, "containers")]
        moved["containers[0]"] = joined(part.path, name)
    if not own.get("containers") and not serving:
        yield _unknown(part, "", "no container and no model is in it")
        return
    spec = _with_images(merged({key: field for key, field in serving.items() if key in POD_FIELDS}, own))
    spec["containers"].sort(key=lambda container: container.get("name") != "kserve-container")
    notes: tuple[str, ...] = ()
    if name and not serving and not unknown:
        notes = ("its serving runtime is not among the files, and is assumed to add no devices",)
    head = PodGroup(part.path, spec, {}, count, part.role, moved, notes=notes, unknown=unknown)
    if part.value.get("workerSpec") is None:
        yield head
    else:
        yield from _with_workers(part, head, within(serving, "workerSpec"))


def _serving_runtime(part: FormPart, model: JSON) -> tuple[JSON, tuple[str, ...]]:
    """The spec of the runtime of a model if it is among the files, and what is not known."""
    wanted = str(model.get("runtime") or "")
    found = part.library.find((_KSERVE, "ServingRuntime"), part.namespace, wanted) or part.library.find(
        (_KSERVE, "ClusterServingRuntime"), "", wanted
    )
    if found is not None:
        return within(found, "spec"), ()
    resources = within(model, "resources")
    if resources.get("limits") or resources.get("requests") or resources.get("claims"):
        return {}, ()
    which = f"ServingRuntime {wanted}" if wanted else "its ServingRuntime"
    why = part.library.reason((_KSERVE, "ClusterServingRuntime"), "", wanted)
    return {}, (f"{which}, which has the resources of its container, {why}",)


def _with_workers(part: FormPart, head: PodGroup, serving: JSON) -> Iterator[PodGroup]:
    """The head and the workers of a predictor on several nodes, with as many GPUs as its parallel sizes need."""
    path = joined(part.path, "workerSpec")
    worker = merged(serving, _object(part.value["workerSpec"], path))
    sizes = [whole_number(worker, f"{name}ParallelSize", 1, path) for name in ("tensor", "pipeline")]
    total = max(1, sizes[0] * sizes[1])
    spec = {key: field for key, field in worker.items() if key in POD_FIELDS}
    spec["containers"] = spec.get("containers") or [{"name": "worker-container"}]
    spec = _with_images(spec)
    of_head, of_worker = _gpus(head.spec), _gpus(spec)
    if of_worker:
        nodes = math.ceil(total / of_worker)
        if of_head >= total:
            nodes = 1
        of_head = total if nodes == 1 else of_head or total - of_worker * (nodes - 1)
    else:
        of_worker = 1
        nodes = 1 + max(0, total - of_head) if of_head else total
        of_head = of_head or 1
    yield replace(head, spec=_with_gpus(head.spec, of_head), role=f"{part.role} head")
    if nodes > 1:
        count = head.count * (nodes - 1)
        yield PodGroup(path, _with_gpus(spec, of_worker), {}, count, f"{part.role} worker", unknown=head.unknown)


def _gpus(spec: JSON) -> int:
    resources = within(each(spec, "containers")[0], "resources")
    found = within(resources, "limits").get(_GPU) or within(resources, "requests").get(_GPU) or 0
    return int(str(found)) if str(found).isdigit() else 0


def _with_gpus(spec: JSON, count: int) -> JSON:
    first, *others = each(spec, "containers")
    resources = within(first, "resources")
    limits = {**within(resources, "limits"), _GPU: count}
    requests = {name: amount for name, amount in within(resources, "requests").items() if name != _GPU}
    resources = {**resources, "limits": limits, "requests": requests}
    return {**spec, "containers": [{**first, "resources": resources}, *others]}


def llm(part: FormPart) -> Iterator[PodGroup]:
    """The pods of an LLMInferenceService: pods that decode or do both, and pods that only prefill (KServe).

    With `worker`, a replica is a LeaderWorkerSet, as large as the parallelism says.
    """
    spec = part.value
    unknown: tuple[str, ...] = ()
    for reference in each(part.value, "baseRefs"):
        place = ((_KSERVE, "LLMInferenceServiceConfig"), part.namespace, str(reference.get("name")))
        found = part.library.find(*place)
        if found is None:
            why = part.library.reason(*place)
            unknown = (f"LLMInferenceServiceConfig {reference.get('name')}, to which it refers, {why}",)
        else:
            spec = merged(within(found, "spec"), spec)
    spec = merged(spec, part.value)
    parts = [(spec, part.path, part.role)]
    if isinstance(spec.get("prefill"), dict):
        parts.append((spec["prefill"], joined(part.path, "prefill"), "prefill"))
    for value, path, role in parts:
        yield from _of_llm(replace(part, value=value, path=path, role=role), unknown)


def _of_llm(part: FormPart, unknown: tuple[str, ...]) -> Iterator[PodGroup]:
    replicas = whole_number(part.value, "replicas", 1, part.path)
    scaling = part.value.get("scaling")
    if isinstance(scaling, dict):
        replicas = whole_number(scaling, "minReplicas", 1, joined(part.path, "scaling"))
    first = next((name for name in ("template", "worker") if isinstance(part.value.get(name), dict)), None)
    if first is None:
        if part.whole.get("kind") != "LLMInferenceServiceConfig" and replicas:
            preset = "its pods are those of a preset of KServe, which is not among the files"
            yield _unknown(part, "", unknown[0] if unknown else preset)
        return
    several = isinstance(part.value.get("worker"), dict)
    size = _size(part) if several else 1
    role = f"{part.role} leader".strip() if several else part.role
    groups = [(first, replicas, role)]
    groups += [("worker", replicas * (size - 1), f"{part.role} worker".strip())] if several else []
    for name, count, what in groups:
        if count:
            path = joined(part.path, name)
            made = PodGroup(path, _with_images(part.value[name]), {}, count, what, unknown=unknown)
            yield _with_managed_claim(made, within(part.whole, "metadata", "annotations"))


def _size(part: FormPart) -> int:
    """The number of pods of a replica."""
    path = joined(part.path, "parallelism")
    parallelism = within(part.value, "parallelism")
    data, local, pipeline = (whole_number(parallelism, name, 0, path) for name in ("data", "dataLocal", "pipeline"))
    return max(1, max(data, 1) // max(local, 1)) if data or local else max(1, pipeline)


def _with_managed_claim(group: PodGroup, annotations: JSON) -> PodGroup:
    """The pods with the claim that KServe makes for annotations of an LLMInferenceService."""
    device_class = str(annotations.get(f"{_MANAGED}device-class") or "").strip()
    if not device_class:
        return group
    path = "metadata.annotations"
    count = _annotation(annotations, f"{_MANAGED}device-count", path) or 1
    lines = str(annotations.get(f"{_MANAGED}cel-selector") or "").splitlines()
    exactly: JSON = {"deviceClassName": device_class, "count": count}
    if selectors := [{"cel": {"expression": line.strip()}} for line in lines if line.strip()]:
        exactly["selectors"] = selectors
    target = str(annotations.get(f"{_MANAGED}container-name") or "main")
    containers = [
        _using(container, "managed") if container.get("name") == target else container
        for container in each(group.spec, "containers")
    ]
    made = _claim_template("managed-claim", [{"name": "device", "exactly": exactly}])
    claims = [
        *each(group.spec, "resourceClaims"),
        {"name": "managed", "resourceClaimTemplateName": made["metadata"]["name"]},
    ]
    spec = {**group.spec, "containers": containers, "resourceClaims": claims}
    moved = {**group.moved, f"resourceClaims[{len(claims) - 1}]": path}
    return replace(group, spec=spec, moved=moved, templates=(made,))


def _using(container: JSON, claim: str, requests: tuple[str, ...] = ()) -> JSON:
    """The container that uses a claim of its pod, or only some of its requests."""
    resources = within(container, "resources")
    used = [{"name": claim, "request": request} for request in requests] or [{"name": claim}]
    return {**container, "resources": {**resources, "claims": [*each(resources, "claims"), *used]}}


def _claim_template(name: str, requests: list[JSON]) -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def nim(part: FormPart) -> Iterator[PodGroup]:
    """The pods of a NIMService, of a LeaderWorkerSet if it is for several nodes (NIM Operator)."""
    value, path = part.value, part.path
    if value is not part.whole and part.whole.get("kind") == "NIMPipeline" and _is_off(part):
        return
    replicas = whole_number(value, "replicas", 1, path)
    scale = within(value, "scale")
    if scale.get("enabled") is True:
        replicas = whole_number(within(scale, "hpa"), "minReplicas", 1, joined(path, "scale.hpa"))
    parallelism = within(value, "multiNode", "parallelism")
    where = joined(path, "multiNode.parallelism")
    size = max(1, whole_number(parallelism, "pipeline", 1, where))
    count = part.count * replicas * size
    if not count:
        return
    container: JSON = {"name": "nim", "image": _IMAGE, "resources": within(value, "resources")}
    kept = ("nodeSelector", "tolerations", "affinity", "schedulerName", "priorityClassName", "runtimeClassName")
    spec = {name: value[name] for name in kept if value.get(name) is not None}
    claims, moved, templates = [], {"containers[0]": path}, []
    for index, resource in enumerate(each(value, "draResources")):
        name = f"dra-{index}"
        claim, made = _nim_claim(resource, f"{joined(path, 'draResources')}[{index}]", f"{name}-claim")
        claims.append({"name": name, **claim})
        templates += made
        container = _using(container, name, tuple(str(request) for request in resource.get("requests") or ()))
        moved[f"resourceClaims[{index}]"] = f"{joined(path, 'draResources')}[{index}]"
    unknown: tuple[str, ...] = ()
    if not claims and within(value, "storage", "nimCache").get("profile") and not _requests_gpus(container):
        container = _limited(container, _GPU, whole_number(parallelism, "tensor", 1, where))
        if not value.get("multiNode"):
            unknown = ("the profile of its model says how many GPUs it gets: 1 is evaluated",)
    spec |= {"containers": [container, *_sidecars(value)]} | ({"resourceClaims": claims} if claims else {})
    yield PodGroup(path, spec, {}, count, part.role, moved, templates=tuple(templates), unknown=unknown)


def _is_off(part: FormPart) -> bool:
    """Whether a service of a NIMPipeline is not enabled."""
    services = each(part.whole, "spec", "services")
    return any(service.get("spec") is part.value and service.get("enabled") is not True for service in services)


def _sidecars(value: JSON) -> Iterator[JSON]:
    for index, sidecar in enumerate(each(value, "sidecarContainers")):
        yield {
            "name": str(sidecar.get("name") or f"sidecar-{index}"),
            "image": _IMAGE,
            "resources": within(sidecar, "resources"),
        }


def _requests_gpus(container: JSON) -> bool:
    resources = within(container, "resources")
    return _GPU in within(resources, "limits") or _GPU in within(resources, "requests")


def _limited(container: JSON, resource: str, count: int) -> JSON:
    resources = within(container, "resources")
    limits = {**within(resources, "limits"), resource: count}
    return {**container, "resources": {**resources, "limits": limits}}


def _nim_claim(resource: JSON, path: str, name: str) -> tuple[JSON, list[JSON]]:
    """The reference to a claim of a pod, and the claim template that the operator makes for it."""
    created = resource.get("claimCreationSpec")
    if not isinstance(created, dict):
        kept = ("resourceClaimName", "resourceClaimTemplateName")
        return {field: resource[field] for field in kept if resource.get(field) is not None}, []
    requests: list[JSON] = []
    for index, device in enumerate(each(created, "devices")):
        where = f"{path}.claimCreationSpec.devices[{index}]"
        exactly: JSON = {
            "deviceClassName": device.get("deviceClassName") or "gpu.nvidia.com",
            "count": whole_number(device, "count", 1, where),
        }
        if selectors := [{"cel": {"expression": text}} for text in _nim_selectors(device, where)]:
            exactly["selectors"] = selectors
        requests.append({"name": device.get("name"), "exactly": exactly})
    return {"resourceClaimTemplateName": name}, [_claim_template(name, requests)]


def _nim_selectors(device: JSON, path: str) -> Iterator[str]:
    driver = str(device.get("driverName") or "gpu.nvidia.com")
    yield from (str(text) for text in device.get("celExpressions") or ())
    for index, selector in enumerate(each(device, "attributeSelectors")):
        left = _nim_key(selector, "attributes", driver)
        operator = _nim_operator(selector, f"{path}.attributeSelectors[{index}]")
        value = within(selector, "value")
        if "versionValue" in value:
            yield f"{left}.compareTo(semver({_literal(value['versionValue'])})) {operator} 0"
        else:
            yield f"{left} {operator} {_literal(next(iter(value.values()), ''))}"
    for index, selector in enumerate(each(device, "capacitySelectors")):
        left = _nim_key(selector, "capacity", driver)
        operator = _nim_operator(selector, f"{path}.capacitySelectors[{index}]")
        yield f"{left}.compareTo(quantity({_literal(str(selector.get('value')))})) {operator} 0"


def _nim_key(selector: JSON, field: str, driver: str) -> str:
    domain, slash, name = str(selector.get("key")).rpartition("/")
    return f"device.{field}[{_literal(domain if slash else driver)}].{name}"


def _nim_operator(selector: JSON, path: str) -> str:
    operator = str(selector.get("op") or "Equal")
    if operator not in _OPERATORS:
        raise DecodeError(f"{path}.op", f"must be one of {', '.join(_OPERATORS)}, not {operator!r}")
    return _OPERATORS[operator]


def _literal(value: object) -> str:
    """A value as CEL writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def runtime(part: FormPart) -> Iterator[PodGroup]:
    """The jobs of a TrainingRuntime, with the nodes and resources of the TrainJob that refers to it (Kubeflow Trainer).

    The jobs are those of a JobSet. The job of the training has a pod for each node.
    """
    if "runtimeRef" not in part.value:
        yield from _jobs(part, part.value, {}, ())
        return
    reference = within(part.value, "runtimeRef")
    kind, name = str(reference.get("kind") or "ClusterTrainingRuntime"), str(reference.get("name"))
    namespace = part.namespace if kind == "TrainingRuntime" else ""
    trainer = within(part.value, "trainer")
    found = part.library.find((_TRAINER, kind), namespace, name)
    if found is None:
        said = f"{kind} {name}, which has its pod templates, {part.library.reason((_TRAINER, kind), namespace, name)}"
        resources = within(trainer, "resourcesPerNode")
        count = part.count * whole_number(trainer, "numNodes", 1, joined(part.path, "trainer"))
        spec = {"containers": [{"name": "node", "image": _IMAGE, "resources": resources}]}
        moved = {"containers[0].resources": joined(part.path, "trainer.resourcesPerNode")}
        if resources and count:
            said += ": its nodes are evaluated with the resources of the TrainJob"
            yield PodGroup(joined(part.path, "runtimeRef"), spec, {}, count, "node", moved, unknown=(said,))
        else:
            yield _unknown(part, "runtimeRef", said)
        return
    changed = [field for field in ("podTemplateOverrides", "podSpecOverrides") if part.value.get(field)]
    unknown = tuple(f"its {field} are not applied to the pod templates" for field in changed)
    spec = within(found, "spec")
    for patch in each(part.value, "runtimePatches"):
        template = {"template": within(patch, "trainingRuntimeSpec", "template")}
        spec = merged(spec, template)
    yield from _jobs(part, spec, trainer, unknown)


def _jobs(part: FormPart, spec: JSON, trainer: JSON, unknown: tuple[str, ...]) -> Iterator[PodGroup]:
    """The jobs of a runtime. The number of nodes of a TrainJob is for the job that trains; with MPI it is for the job
    `node`, which has a pod less if the launcher is a node, too.
    """
    policy = within(spec, "mlPolicy")
    own = spec is part.value
    of_policy = whole_number(policy, "numNodes", 1, joined(part.path, "mlPolicy"))
    nodes = whole_number(trainer, "numNodes", 0, joined(part.path, "trainer"))
    launches = isinstance(policy.get("mpi"), dict)
    with_launcher = launches and policy["mpi"].get("runLauncherAsNode") is True
    for index, job in enumerate(each(spec, "template", "spec", "replicatedJobs")):
        inner = within(job, "template", "spec")
        place = f"template.spec.replicatedJobs[{index}]"
        path = joined(part.path, f"{place}.template.spec.template.spec" if own else "runtimeRef")
        at = joined(part.path, place) if own else "runtimeRef"
        is_node = job.get("name") == "node"
        trains = within(job, "template", "metadata", "labels").get(_ANCESTOR) == "trainer"
        count = whole_number(inner, "parallelism", 1, at)
        if trains and policy:
            count = of_policy
        if nodes and (is_node if launches else trains):
            count = max(nodes - 1, 1) if with_launcher else nodes
        count *= part.count * (1 if trains else whole_number(job, "replicas", 1, at))
        pods = within(inner, "template", "spec")
        moved: dict[str, str] = {}
        if trainer.get("resourcesPerNode") and (trains or (with_launcher and is_node)):
            pods, moved = _with_resources(pods, within(trainer, "resourcesPerNode"), part.path)
        if count > 0:
            metadata = within(inner, "template", "metadata")
            role = str(job.get("name") or index)
            yield PodGroup(path, pods, metadata, count, role, moved, unknown=unknown)


def _with_resources(spec: JSON, resources: JSON, path: str) -> tuple[JSON, dict[str, str]]:
    """The pods with the resources of the TrainJob in their container `node`."""
    containers, moved = [], {}
    for index, container in enumerate(each(spec, "containers")):
        if container.get("name") == "node":
            container = {**container, "resources": merged(within(container, "resources"), resources)}
            moved[f"containers[{index}].resources"] = joined(path, "trainer.resourcesPerNode")
        containers.append(container)
    return {**spec, "containers": containers}, moved


def _with_images(spec: JSON) -> JSON:
    """The spec with an image in each container: controllers set images that are not given."""
    found = dict(spec)
    for field in ("initContainers", "containers"):
        if isinstance(spec.get(field), list):
            found[field] = [
                {"image": _IMAGE, **container} if isinstance(container, dict) else container
                for container in spec[field]
            ]
    return found


def _group(part: FormPart, field: str, spec: JSON, metadata: JSON | None = None) -> PodGroup:
    path = joined(part.path, field)
    return PodGroup(path, spec, metadata or {}, part.count, part.role, each_node=part.each_node)


def _unknown(part: FormPart, field: str, text: str) -> PodGroup:
    """No pods, because something is not known."""
    return PodGroup(joined(part.path, field), {}, {}, 0, part.role, unknown=(text,))


def _object(value: object, path: str) -> JSON:
    if not isinstance(value, dict):
        raise DecodeError(path, f"must be an object, not {json_type(value)}")
    return value


FORMS: Final[Mapping[str, Form]] = {
    "template": template,
    "spec": pod_spec,
    "clique": clique,
    "component": component,
    "llm": llm,
    "machine": machine,
    "nim": nim,
    "revision": revision,
    "rollout": rollout,
    "runtime": runtime,
    "workflow": workflow,
}
"""The functions that read the forms of the table."""
