# SPDX-License-Identifier: Apache-2.0
"""For every rule, files that break it and files that do not."""

from dataclasses import dataclass

from dra_driver.scheduler.cel import NEWEST

from .support import (
    channel_config,
    claim,
    config,
    device_class,
    domain,
    pod,
    request,
    selecting,
    selectors,
    stream,
    template,
)

A = "device.attributes['gpu.nvidia.com']"
GPU_CLASS = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
FIRST_OF_TWO = {
    "name": "any",
    "firstAvailable": [{"name": name, "deviceClassName": "gpu.nvidia.com"} for name in ("big", "small")],
}
THIRDS = request(
    "thirds", "mig.nvidia.com", count=3, selectors=selectors("device.attributes['gpu.nvidia.com'].profile == '3g.40gb'")
)
HALVES = {**THIRDS, "exactly": {**THIRDS["exactly"], "count": 2}}
MIG = request("small", "mig.nvidia.com")
SHARED = {"strategy": "TimeSlicing"}


@dataclass(frozen=True)
class Case:
    """`bad` breaks `rule`, and only that, at `path` with `says` in the message; nothing is wrong with `good`."""

    rule: str
    bad: str
    path: str
    says: str
    good: str
    release: str = NEWEST


def slice_with(device: dict[str, object]) -> dict[str, object]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "slice"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "node",
            "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }


RIGHT_SELECTOR = {"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0"}


def taint_rule(selector: dict[str, str] | None = None, effect: str = "NoExecute") -> dict[str, object]:
    spec: dict[str, object] = {"taint": {"key": "broken", "effect": effect}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "rule"},
        "spec": spec if selector is None else {**spec, "deviceSelector": selector},
    }


def configured(data: str) -> dict[str, object]:
    """A configuration for a driver of which nothing is known."""
    return {"opaque": {"driver": "net.example.com", "parameters": {"data": data}}}


def in_pod(*uses: dict[str, str], name: str = "gpu", **reference: str) -> str:
    """A template with one request, and a pod whose only claim is made of it."""
    return stream(template(name="one-gpu"), pod([{"name": name, **(reference or OF_TEMPLATE)}], *uses))


OF_TEMPLATE = {"resourceClaimTemplateName": "one-gpu"}
REQUESTS = "spec.devices.requests[0]"
EXACTLY = f"{REQUESTS}.exactly"
EXPRESSION = f"{EXACTLY}.selectors[0].cel.expression"
ENTRY = "spec.resourceClaims[0]"
USE = "spec.containers[0].resources.claims[0]"
GOOD = stream(claim())

CHANNELS = device_class(
    "device.driver == 'compute-domain.nvidia.com'", name="compute-domain-default-channel.nvidia.com"
)
CHANNEL = request("channel", "compute-domain-default-channel.nvidia.com")
OF_DOMAIN = {"name": "channel", "resourceClaimTemplateName": "train-channel"}
NET = device_class("device.driver == 'net.example.com'", name="net")

CASES = [
    Case("unreadable", "kind: [", "", "is not YAML", "kind: []"),
    Case(
        "duplicate-key",
        "{kind: ResourceClaim, apiVersion: resource.k8s.io/v1, metadata: {name: a, name: a}, spec: {devices: {}}}",
        "",
        "key 'name' is there twice",
        "{kind: ResourceClaim, apiVersion: resource.k8s.io/v1, metadata: {name: a}, spec: {devices: {}}}",
    ),
    Case("not-an-object", "kind: ResourceClaim", "apiVersion", "set apiVersion: resource.k8s.io/v1", "kind: Chart"),
    Case("unknown-field", stream(claim([request(cuont=2)])), f"{EXACTLY}.cuont", "did you mean 'count'?", GOOD),
    Case("schema", stream(claim([request(count="2")])), f"{EXACTLY}.count", "must be an integer, not a string", GOOD),
    Case("schema", stream(claim([{"exactly": request()["exactly"]}])), f"{REQUESTS}.name", "is required", GOOD),
    Case(
        "schema",
        stream(claim([{"name": "gpu", "deviceClassName": "gpu.nvidia.com", "count": 2}])),
        f"{REQUESTS}.deviceClassName",
        "put it under 'exactly'",
        stream(claim([request(count=2)])),
    ),
    Case(
        "schema",
        stream(claim([{**request(), **FIRST_OF_TWO}])),
        REQUESTS,
        "exactly one of exactly and firstAvailable",
        stream(claim([FIRST_OF_TWO])),
    ),
    Case("schema", stream(claim([5, MIG])), REQUESTS, "must be an object, not a number", stream(claim([MIG]))),
    Case(
        "invalid-slice",
        stream(slice_with({"name": "GPU_0"})),
        "spec.devices[0].name",
        "is not a DNS label",
        stream(slice_with({"name": "gpu-0"})),
    ),
    Case(
        "api-version-not-served",
        stream(claim([{"name": "gpu", "deviceClassName": "gpu.nvidia.com"}], version="v1alpha3")),
        "apiVersion",
        "is gone since Kubernetes 1.34: use resource.k8s.io/v1; what a request asks for goes under 'exactly'",
        GOOD,
    ),
    Case("api-version-not-served", stream(claim(version="v2")), "apiVersion", "does not exist", GOOD),
    Case(
        "deprecated-api-version",
        stream(claim(version="v1beta2")),
        "apiVersion",
        "deprecated since 1.36 and will be gone in 1.39: use resource.k8s.io/v1",
        GOOD,
    ),
    Case("unknown-kind", stream(claim(kind="ResourceClaims")), "kind", "did you mean 'ResourceClaim'?", GOOD),
    Case(
        "field-not-in-release",
        stream(claim([request(derivedAttributes=[])])),
        f"{EXACTLY}.derivedAttributes",
        "is known from Kubernetes 1.37 on",
        GOOD,
        "1.36",
    ),
    Case(
        "field-not-in-release",
        stream(slice_with({"name": "gpu", "nodeAllocatableResourceMappings": {}})),
        "spec.devices[0].nodeAllocatableResourceMappings",
        "was removed in Kubernetes 1.37",
        stream(slice_with({"name": "gpu"})),
    ),
    Case(
        "feature-gate-off",
        stream(claim([request(tolerations=[{"operator": "Exists"}])])),
        f"{EXACTLY}.tolerations",
        "unless the feature gate DRADeviceTaints is on, on by default from 1.36 on",
        GOOD,
        "1.35",
    ),
    Case(
        "taint-rule-selects-too-much",
        stream(taint_rule()),
        "spec",
        "taints every device, and from 1.38 on none",
        stream(taint_rule(RIGHT_SELECTOR)),
    ),
    Case(
        "taint-rule-selects-too-much",
        stream(taint_rule()),
        "spec",
        "Kubernetes 1.38 taints no device, and up to 1.37 every device",
        stream(taint_rule(effect="None")),
        "1.38",
    ),
    Case(
        "taint-rule-selects-too-much",
        stream(taint_rule({})),
        "spec.deviceSelector",
        "an empty deviceSelector taints every device of every driver",
        stream(taint_rule({"driver": "gpu.nvidia.com"})),
    ),
    Case(
        "taint-rule-selects-too-much",
        stream(taint_rule({"pool": "node-a", "device": "gpu-0"})),
        "spec.deviceSelector",
        "name a driver",
        stream(taint_rule({"driver": "gpu.nvidia.com", "pool": "node-a"})),
    ),
    Case(
        "taint-rule-selects-too-much",
        stream(taint_rule({"driver": "gpu.nvidia.com", "device": "gpu-0"})),
        "spec.deviceSelector.device",
        "taints the devices 'gpu-0' of all pools",
        stream(taint_rule(RIGHT_SELECTOR)),
    ),
    Case("invalid-name", stream(claim(name="Wanted")), "metadata.name", "is not a DNS subdomain", GOOD),
    Case("invalid-name", stream(claim([request("GPU")])), f"{REQUESTS}.name", "is not a DNS label", GOOD),
    Case(
        "invalid-name",
        stream({**claim(), "metadata": {}}),
        "metadata",
        "set metadata.name",
        stream({**claim(), "metadata": {"generateName": "wanted-"}}),
    ),
    Case(
        "invalid-name",
        stream(device_class(GPU_CLASS, extendedResourceName="gpu")),
        "spec.extendedResourceName",
        "use DOMAIN/NAME",
        stream(device_class(GPU_CLASS, extendedResourceName="example.com/gpu")),
    ),
    Case("duplicate-name", stream(claim([request(), request()])), "spec.devices.requests[1].name", "used twice", GOOD),
    Case(
        "invalid-count",
        stream(claim([request(allocationMode="All", count=2)])),
        f"{EXACTLY}.count",
        "does not go with allocationMode All",
        stream(claim([request(allocationMode="All")])),
    ),
    Case(
        "invalid-count",
        stream(claim([request(allocationMode="Some")])),
        f"{EXACTLY}.allocationMode",
        "must be ExactCount or All",
        stream(claim([request(allocationMode="ExactCount", count=2)])),
    ),
    Case("invalid-count", stream(claim([request(count=-1)])), f"{EXACTLY}.count", "must be at least 1", GOOD),
    Case("zero-count", stream(claim([request(count=0)])), f"{EXACTLY}.count", "0 is taken as 1", GOOD),
    Case(
        "invalid-toleration",
        stream(claim([request(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}])])),
        f"{EXACTLY}.tolerations[0].value",
        "must be empty with operator Exists",
        stream(claim([request(tolerations=[{"key": "a", "value": "b", "effect": "NoSchedule"}])])),
    ),
    Case(
        "invalid-toleration",
        stream(claim([request(tolerations=[{"operator": "Exists", "effect": "Evict"}])])),
        f"{EXACTLY}.tolerations[0].effect",
        "not 'Evict'",
        stream(claim([request(tolerations=[{"operator": "Exists", "effect": "NoExecute"}])])),
    ),
    Case(
        "too-many",
        stream(claim([request(count=32), request("more")])),
        "spec.devices.requests",
        "at least 33 devices, it can be given 32",
        stream(claim([request(count=31), request("more")])),
    ),
    Case(
        "too-many",
        stream(claim([request(selectors=selectors(*["true"] * 33))])),
        f"{EXACTLY}.selectors",
        "has 33 entries, at most 32 are accepted",
        stream(claim([request(selectors=selectors(*["true"] * 32))])),
    ),
    Case(
        "too-large",
        stream(claim([request(device_class="net")], config=[configured("x" * 10_240)]), NET),
        "spec.devices.config[0].opaque.parameters",
        "has 10251 bytes, at most 10240",
        stream(claim([request(device_class="net")], config=[configured("x")]), NET),
    ),
    Case(
        "constraint-names-no-request",
        stream(claim(constraints=[{"requests": ["gpus"], "matchAttribute": "gpu.nvidia.com/productName"}])),
        "spec.devices.constraints[0].requests[0]",
        "did you mean 'gpu'?",
        stream(claim(constraints=[{"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/productName"}])),
    ),
    Case(
        "constraint-names-no-request",
        stream(
            claim([FIRST_OF_TWO], constraints=[{"requests": ["any/huge"], "matchAttribute": "gpu.nvidia.com/type"}])
        ),
        "spec.devices.constraints[0].requests[0]",
        "'any/huge' is no request of the claim",
        stream(
            claim(
                [FIRST_OF_TWO],
                constraints=[{"requests": ["any/big", "any"], "matchAttribute": "gpu.nvidia.com/productName"}],
            )
        ),
    ),
    Case(
        "constraint-attribute",
        stream(claim(constraints=[{"matchAttribute": "productName"}])),
        "spec.devices.constraints[0].matchAttribute",
        "must be DOMAIN/ATTRIBUTE",
        stream(claim(constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}])),
    ),
    Case(
        "constraint-attribute",
        stream(claim(constraints=[{"requests": ["gpu"]}])),
        "spec.devices.constraints[0]",
        "exactly one of matchAttribute and distinctAttribute",
        stream(claim(constraints=[{"distinctAttribute": "gpu.nvidia.com/uuid"}])),
    ),
    Case(
        "constraint-never-met",
        stream(claim([MIG], constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUIDs"}])),
        "spec.devices.constraints[0].matchAttribute",
        "did you mean 'gpu.nvidia.com/parentUUID'?",
        stream(claim([MIG], constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}])),
    ),
    Case(
        "constraint-cannot-hold",
        stream(claim([THIRDS], constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}])),
        "spec.devices.constraints[0].matchAttribute",
        "no known node has devices that meet it, even if they are all free; without it, a100-80x4-mig has them",
        stream(claim([HALVES], constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}])),
    ),
    Case(
        "constraint-cannot-hold",
        stream(claim([request(count=9)], constraints=[{"distinctAttribute": "gpu.nvidia.com/productName"}])),
        "spec.devices.constraints[0].distinctAttribute",
        "no known node has devices that meet it",
        stream(claim([request(count=9)], constraints=[{"matchAttribute": "gpu.nvidia.com/productName"}])),
    ),
    Case(
        "config-names-no-request",
        stream(claim(config=[config("GpuConfig", "gpus")])),
        "spec.devices.config[0].requests[0]",
        "did you mean 'gpu'?",
        stream(claim(config=[config("GpuConfig", "gpu")])),
    ),
    Case(
        "invalid-config",
        stream(claim(config=[config("GpuConfig", sharing={"strategy": "Slicing"})])),
        "spec.devices.config[0].opaque.parameters.sharing.strategy",
        "must be TimeSlicing or MPS",
        stream(claim(config=[config("GpuConfig")])),
    ),
    Case(
        "invalid-config",
        stream(claim(config=[config("GpuConf")])),
        "spec.devices.config[0].opaque.parameters.kind",
        "'GpuConf' is not supported",
        stream(claim([MIG], config=[config("MigDeviceConfig")])),
    ),
    Case(
        "invalid-config",
        stream(
            device_class(
                GPU_CLASS, config=[{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}]
            )
        ),
        "spec.config[0].opaque.parameters.apiVersion",
        "is required",
        stream(device_class(GPU_CLASS, config=[{"opaque": {"driver": "net.example.com", "parameters": {}}}])),
    ),
    Case(
        "invalid-config",
        stream(claim(config=[config("GpuConfig", additionalDevices=["mofed"])])),
        "spec.devices.config[0].opaque.parameters.additionalDevices[0]",
        "only a DeviceClass or the driver's policy can ask for it",
        stream(
            device_class(GPU_CLASS, config=[{"opaque": config("GpuConfig", additionalDevices=["mofed"])["opaque"]}])
        ),
    ),
    Case(
        "config-kind",
        stream(claim([request(), MIG], config=[config("GpuConfig", "small")])),
        "spec.devices.config[0].opaque.parameters.kind",
        "use a MigDeviceConfig",
        stream(claim([request(), MIG], config=[config("MigDeviceConfig", "small"), config("GpuConfig")])),
    ),
    Case(
        "config-kind",
        stream(claim([request(device_class="vfio.gpu.nvidia.com")], config=[config("GpuConfig", "gpu")])),
        "spec.devices.config[0].opaque.parameters.kind",
        "use a VfioDeviceConfig, or another class",
        stream(claim([request(device_class="vfio.gpu.nvidia.com")], config=[config("VfioDeviceConfig", "gpu")])),
    ),
    Case(
        "config-unused",
        stream(claim(config=[config("MigDeviceConfig")])),
        "spec.devices.config[0].opaque.parameters.kind",
        "no request for devices that take a MigDeviceConfig",
        stream(claim([request(), MIG], config=[config("MigDeviceConfig")])),
    ),
    Case(
        "config-unused",
        stream(claim(config=[{"opaque": {"driver": "gpu.nvidia", "parameters": {}}}])),
        "spec.devices.config[0].opaque.driver",
        "no driver reads it",
        stream(claim(config=[config()])),
    ),
    Case(
        "config-without-effect",
        stream(claim([MIG], config=[config("MigDeviceConfig", sharing={"strategy": "TimeSlicing"})])),
        "spec.devices.config[0].opaque.parameters.sharing.strategy",
        "TimeSlicing changes nothing for a MIG device",
        stream(claim([MIG], config=[config("MigDeviceConfig")])),
    ),
    Case(
        "config-domain",
        stream(CHANNELS, claim([CHANNEL], config=[channel_config(domainID="train")])),
        "spec.devices.config[0].opaque.parameters.domainID",
        "'train' is not the UID of an object",
        stream(CHANNELS, claim([CHANNEL], config=[channel_config()])),
    ),
    Case(
        "config-domain",
        stream(CHANNELS, claim([CHANNEL], config=[channel_config("ComputeDomainDaemonConfig")])),
        "spec.devices.config[0].opaque.parameters.kind",
        "only the cluster controller makes claims for IMEX daemons",
        stream(CHANNELS, claim([CHANNEL], config=[channel_config()])),
    ),
    Case(
        "invalid-config",
        stream(CHANNELS, claim([CHANNEL], config=[channel_config(allocationMode="Some")])),
        "spec.devices.config[0].opaque.parameters.allocationMode",
        "must be Single or All, not 'Some'",
        stream(CHANNELS, claim([CHANNEL], config=[channel_config(allocationMode="All")])),
    ),
    Case(
        "unknown-field",
        stream(domain(numNode=18)),
        "spec.numNode",
        "did you mean 'numNodes'?",
        stream(domain()),
    ),
    Case("schema", stream(domain(channel=None)), "spec.channel", "is required", stream(domain())),
    Case(
        "schema",
        stream({**domain(), "apiVersion": "resource.nvidia.com/v1"}),
        "apiVersion",
        "must be resource.nvidia.com/v1beta1",
        stream(domain()),
    ),
    Case(
        "invalid-name",
        stream(domain(template="Train")),
        "spec.channel.resourceClaimTemplate.name",
        "'Train' is not a DNS subdomain",
        stream(domain(template="train")),
    ),
    Case(
        "domain-template-taken",
        stream(domain(), domain(name="other")),
        "spec.channel.resourceClaimTemplate.name",
        "is also the template of ComputeDomain train",
        stream(domain(), domain(name="other", template="another")),
    ),
    Case(
        "domain-template-taken",
        stream(domain(), template(name="train-channel")),
        "spec.channel.resourceClaimTemplate.name",
        "which the controller does not replace",
        stream(domain(), CHANNELS, template([CHANNEL], name="train-channel", config=[channel_config()])),
    ),
    Case("domain-num-nodes", stream(domain(numNodes=18)), "spec.numNodes", "remove it", stream(domain(numNodes=0))),
    Case(
        "channel-without-domain",
        stream(CHANNELS, claim([CHANNEL])),
        EXACTLY,
        "use the claim template that a ComputeDomain names",
        stream(CHANNELS, claim([CHANNEL], config=[channel_config("ComputeDomainChannelConfig", "channel")])),
    ),
    Case(
        "container-names-no-request",
        stream(domain(), pod([OF_DOMAIN], {"name": "channel", "request": "gpu"})),
        f"{USE}.request",
        "'gpu' is no request of ResourceClaimTemplate train-channel (it has channel)",
        stream(domain(), pod([OF_DOMAIN], {"name": "channel", "request": "channel"})),
    ),
    Case(
        "claim-not-found",
        stream(domain(template="train-channels"), pod([OF_DOMAIN], {"name": "channel"})),
        f"{ENTRY}.resourceClaimTemplateName",
        "did you mean 'train-channels'?",
        stream(domain(), pod([OF_DOMAIN], {"name": "channel"})),
    ),
    Case(
        "unknown-class",
        stream(claim([request(device_class="gpu.nvidai.com")])),
        f"{EXACTLY}.deviceClassName",
        "did you mean 'gpu.nvidia.com'?",
        stream(claim([request(device_class="mine")]), device_class(GPU_CLASS)),
    ),
    Case(
        "capacity-never-met",
        stream(claim([request(capacity={"requests": {"memory": "1Ti"}})])),
        f"{EXACTLY}.capacity.requests[memory]",
        "has 1Ti of it, the most is",
        stream(claim([request(capacity={"requests": {"memory": "80Gi"}})])),
    ),
    Case(
        "capacity-never-met",
        stream(claim([request(capacity={"requests": {"memroy": "1Gi"}})])),
        f"{EXACTLY}.capacity.requests[memroy]",
        "(there is memory, shares)",
        GOOD,
    ),
    Case(
        "selector-refused",
        stream(selecting(f"{A}.type = 'gpu'")),
        EXPRESSION,
        "does not compile: syntax error",
        stream(selecting(f"{A}.type == 'gpu'")),
    ),
    Case(
        "selector-refused",
        stream(selecting("1 in [1, ?dyn(optional.of(1))]")),
        EXPRESSION,
        "because kube-apiserver and kube-scheduler panic on it",
        stream(selecting("1 in [1, ?optional.of(1)]")),
    ),
    Case(
        "selector-refused",
        stream(selecting(f"true{' ' * 10_240}")),
        EXPRESSION,
        "is too long",
        stream(selecting("true")),
    ),
    Case(
        "selector-refused",
        stream(selecting("['a', 'b'].map(x, x + x).exists(y, y != y + 'x') && type(device.driver) == string")),
        EXPRESSION,
        "is too complex",
        stream(selecting("['a', 'b'].exists(y, y == 'a')")),
    ),
    Case(
        "selector-fails",
        stream(selecting(f"{A}.profile == '1g.10gb'")),
        EXPRESSION,
        "devices of class mig.nvidia.com have it",
        stream(selecting(f"{A}.profile == '1g.10gb'", device_class="mig.nvidia.com")),
    ),
    Case(
        "selector-fails",
        stream(
            selecting(f"{A}.profile == '1g.10gb'", device_class="mine"),
            device_class("device.driver == 'gpu.nvidia.com'"),
        ),
        EXPRESSION,
        "guard it with has(…) && …, or read it with .?NAME.orValue(…)",
        stream(
            selecting(f"{A}.?profile.orValue('') == '1g.10gb'", device_class="mine"),
            device_class("device.driver == 'gpu.nvidia.com'"),
        ),
    ),
    Case(
        "selector-never-true",
        stream(selecting(f"{A}.type == 'gpu' && {A}.productName == 'H100'")),
        EXPRESSION,
        f"{A}.productName == 'H100' is false, productName is NVIDIA A100-SXM4-40GB",
        stream(selecting(f"{A}.type == 'gpu' && {A}.productName.contains('H100')")),
    ),
    Case(
        "selector-never-true",
        stream(selecting(f"{A}.productName.contains('H100')", f"{A}.architecture == 'Ampere'")),
        f"{EXACTLY}.selectors[1].cel.expression",
        "that the selectors before it leave",
        stream(selecting(f"{A}.productName.contains('A100')", f"{A}.architecture == 'Ampere'")),
    ),
    Case(
        "selector-never-true",
        stream(device_class("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'tpu'")),
        "spec.selectors[0].cel.expression",
        "type is gpu, mig, vfio, vgpu",
        stream(device_class(GPU_CLASS)),
    ),
    Case(
        "unknown-attribute",
        stream(selecting(f"!has({A}.productNam)")),
        EXPRESSION,
        "did you mean 'productName'?",
        stream(selecting(f"has({A}.productName)")),
    ),
    Case(
        "class-without-driver",
        stream(device_class(f"{A}.type == 'gpu'")),
        "spec.selectors[0].cel.expression",
        "begin with device.driver ==",
        stream(device_class("device.driver == 'net.example.com' && device.attributes['net.example.com'].speed > 1")),
    ),
    Case(
        "unknown-field",
        stream({**pod([], {}), "spec": {"resourceClaim": [], "containers": []}}),
        "spec.resourceClaim",
        "did you mean 'resourceClaims'?",
        stream({**pod([], {}), "spec": {"resourceClaims": [], "containers": []}}),
    ),
    Case(
        "duplicate-object",
        stream(claim([request()]), claim([request()])),
        "metadata.name",
        "there is another ResourceClaim of this name",
        stream(claim([request()]), template(name="claim")),
    ),
    Case(
        "pod-claim",
        in_pod({"name": "gpu"}, resourceClaimTemplate="one-gpu"),
        f"{ENTRY}.resourceClaimTemplate",
        "did you mean 'resourceClaimTemplateName'?",
        in_pod({"name": "gpu"}),
    ),
    Case(
        "pod-claim",
        in_pod({"name": "gpu"}, resourceClaimTemplateName="one-gpu", resourceClaimName="x"),
        ENTRY,
        "exactly one of resourceClaimName and resourceClaimTemplateName",
        in_pod({"name": "gpu", "request": "gpu"}),
    ),
    Case(
        "pod-claim",
        stream(template(name="one-gpu"), pod([{"name": "gpu", "source": OF_TEMPLATE}], {"name": "gpu"})),
        f"{ENTRY}.source",
        "one level up",
        in_pod({"name": "gpu"}),
    ),
    Case(
        "pod-claim",
        in_pod({"name": "gpu"}, {"name": "gpu"}),
        "spec.containers[0].resources.claims[1]",
        "same entry twice",
        in_pod({"name": "gpu"}),
    ),
    Case(
        "container-names-no-claim",
        in_pod({"name": "gpu"}, {"name": "other"}),
        "spec.containers[0].resources.claims[1].name",
        "(there is gpu)",
        in_pod({"name": "gpu"}),
    ),
    Case(
        "container-names-no-request",
        in_pod({"name": "gpu", "request": "small"}),
        f"{USE}.request",
        "'small' is no request of ResourceClaimTemplate one-gpu (it has gpu)",
        in_pod({"name": "gpu", "request": "gpu"}),
    ),
    Case(
        "claim-not-found",
        in_pod({"name": "gpu"}, resourceClaimTemplateName="one-gpus"),
        f"{ENTRY}.resourceClaimTemplateName",
        "did you mean 'one-gpu'?",
        in_pod({"name": "gpu"}),
    ),
    Case("claim-unused", in_pod(), ENTRY, "no container uses claim 'gpu'", in_pod({"name": "gpu"})),
]
