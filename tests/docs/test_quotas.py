# SPDX-License-Identifier: Apache-2.0
"""The examples for quotas: the rules of Kueue's webhooks, and how often Kubernetes counts a device.

Kueue's rules are those of pkg/webhooks/clusterqueue_webhook.go, pkg/config/validation.go and pkg/dra/counters.go, and
the limitations of its page on DRA (commit ff69552, after 0.19). What ResourceQuota counts is what
`dra_driver.scheduler.pods.quota` computes, which golden answers of Kubernetes check (tests/scheduler/pods).
"""

import re
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.inventory import CLASSES
from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.kube.resource import DeviceClass, ObjectMeta, Quantity, ResourceSlice
from dra_driver.kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from dra_driver.kube.resource.codec import V1, decode_claim
from dra_driver.names import DRIVER_NAME
from dra_driver.scheduler.allocator import Cluster
from dra_driver.scheduler.cel import compile_selector
from dra_driver.scheduler.pods import PodDecoder, Quotas, Snapshot
from tests.support.schemas import validate

from .commands import ROOT, blocks

JSON = dict[str, Any]

PAGE = (ROOT / "docs/how-to/quotas.md").read_text(encoding="utf-8")


def example(name: str) -> dict[str, JSON]:
    """The objects of an example by kind."""
    text = (ROOT / f"examples/{name}.yaml").read_text(encoding="utf-8")
    return {one["kind"]: one for one in yaml.load_all(text, yaml.CSafeLoader)}


KUEUE, KUEUE_MEMORY = example("kueue"), example("kueue-memory")
(QUOTA,) = yaml.load_all((ROOT / "examples/quota.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
MAPPINGS, MEMORY_MAPPINGS = (
    yaml.load(content, yaml.CSafeLoader)["resources"]["deviceClassMappings"]
    for _, _, content in blocks(PAGE)
    if "deviceClassMappings:" in content
)
EXAMPLES = [(KUEUE, MAPPINGS), (KUEUE_MEMORY, MEMORY_MAPPINGS)]
LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@pytest.mark.parametrize(("objects", "mappings"), EXAMPLES, ids=["devices", "memory"])
def test_the_queue_has_one_quota_for_each_resource_that_it_covers(objects: JSON, mappings: list[JSON]) -> None:
    (group,) = objects["ClusterQueue"]["spec"]["resourceGroups"]
    assert len(set(group["coveredResources"])) == len(group["coveredResources"]) <= 64
    for flavor in group["flavors"]:
        assert [one["name"] for one in flavor["resources"]] == group["coveredResources"], "in the same order"
        assert flavor["name"] == objects["ResourceFlavor"]["metadata"]["name"]
    assert objects["LocalQueue"]["spec"]["clusterQueue"] == objects["ClusterQueue"]["metadata"]["name"]


@pytest.mark.parametrize(("objects", "mappings"), EXAMPLES, ids=["devices", "memory"])
def test_each_class_is_mapped_once_and_to_a_resource_of_the_queue(objects: JSON, mappings: list[JSON]) -> None:
    covered = objects["ClusterQueue"]["spec"]["resourceGroups"][0]["coveredResources"]
    classes = [name for one in mappings for name in one["deviceClassNames"]]
    assert len(mappings) <= 16
    assert len(classes) == len(set(classes))
    assert {one["name"] for one in mappings} <= set(covered)
    assert all(LABEL_KEY.fullmatch(name) for name in (*classes, *(one["name"] for one in mappings)))
    assert not {one["name"] for one in mappings} & {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}, "those of the classes"


@pytest.mark.parametrize(("objects", "mappings"), EXAMPLES, ids=["devices", "memory"])
def test_the_job_asks_in_a_way_that_kueue_counts(objects: JSON, mappings: list[JSON]) -> None:
    job, template = objects["Job"], objects["ResourceClaimTemplate"]
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == objects["LocalQueue"]["metadata"]["name"]
    (claim,) = job["spec"]["template"]["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"], "no claim by name"
    devices = template["spec"]["spec"]["devices"]
    assert set(devices) == {"requests"}, "neither constraints nor config"
    for request in devices["requests"]:
        assert set(request) == {"name", "exactly"}, "no alternatives"
        assert not {"adminAccess", "allocationMode"} & set(request["exactly"])
        assert request["exactly"]["deviceClassName"] in {name for one in mappings for name in one["deviceClassNames"]}


# Quotas by a counter


def test_sources_have_the_form_that_kueue_accepts() -> None:
    (mapping,) = MEMORY_MAPPINGS
    (source,) = mapping["sources"]
    assert set(source) == {"counter"}, "one type of source in each entry"
    assert set(source["counter"]) == {"name", "driver", "deviceSelector"}
    assert source["counter"]["driver"] == DRIVER_NAME
    assert compile_selector(source["counter"]["deviceSelector"]["cel"]["expression"])


def charge(kind: str, device_class: str, expression: str = "true", count: int = 1) -> int | None:
    """What Kueue charges for a request on a cluster with one such node: the largest amount of the counter that a
    matching device consumes, for each device. None if Kueue waits, because no matching device consumes the counter.
    """
    counter = MEMORY_MAPPINGS[0]["sources"][0]["counter"]
    (found,) = (one for one in CLASSES if one.metadata.name == device_class)
    expressions = (counter["deviceSelector"]["cel"]["expression"], *found.selectors, expression)
    slices = [one for one in simulated_nodes(kind, 1) if isinstance(one, ResourceSlice) and one.driver == DRIVER_NAME]
    devices = [device for one in slices for device in one.devices]
    for each in expressions:
        selector = compile_selector(each)
        devices = [device for device in devices if selector.matches(DRIVER_NAME, device)]
    assert len(devices) >= count
    amounts = [
        consumption.counters[counter["name"]].value
        for device in devices
        for consumption in device.consumes_counters
        if counter["name"] in consumption.counters
    ]
    return max(amounts) * count if amounts else None


CHARGES = [
    ("a MIG device `1g.10gb` of an H100", "h100x8-mixed", "mig.nvidia.com", "profile == '1g.10gb'", "9984Mi"),
    ("a MIG device of any profile of an H100", "h100x8-mixed", "mig.nvidia.com", "", "81152Mi"),
    ("a whole H100 on a node where other GPUs are in MIG mode", "h100x8-mixed", "gpu.nvidia.com", "", "81152Mi"),
]


@pytest.mark.parametrize(
    ("words", "kind", "device_class", "condition", "amount"), CHARGES, ids=[one[0] for one in CHARGES]
)
def test_the_page_tells_the_memory_that_kueue_charges(
    words: str, kind: str, device_class: str, condition: str, amount: str
) -> None:
    expression = f"device.attributes['gpu.nvidia.com'].{condition}" if condition else "true"
    charged = charge(kind, device_class, expression)
    assert charged == Quantity.parse(amount).value
    assert f"| {words} | {amount} |\n" in PAGE


def test_the_job_of_the_example_is_charged_for_its_profile() -> None:
    (request,) = KUEUE_MEMORY["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"]
    (selector,) = request["exactly"]["selectors"]
    charged = charge("h100x8-mig", request["exactly"]["deviceClassName"], selector["cel"]["expression"])
    assert charged == Quantity.parse("9984Mi").value


def test_kueue_waits_for_whole_gpus_of_nodes_without_counters() -> None:
    assert charge("h100x8", "gpu.nvidia.com") is None


KUBERNETES_OBJECTS = [
    QUOTA,
    *(one[kind] for one, _ in EXAMPLES for kind in ("Job", "ResourceClaimTemplate")),
]


@pytest.mark.parametrize("value", KUBERNETES_OBJECTS, ids=lambda one: one["metadata"]["name"])
@pytest.mark.parametrize("release", ["1.34", "1.37"])
def test_kubernetes_own_objects_keep_its_schemas(value: JSON, release: str) -> None:
    validate(value, release)


NAMES = {
    "pods": "requests.nvidia.com/gpu",
    "devices": "gpu.nvidia.com.deviceclass.resource.k8s.io/devices",
    "class": "requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com",
}
POD: JSON = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": "a", "uid": "p"}}


def pod(**requests: str) -> JSON:
    resources = {"requests": requests, "limits": requests}
    return {**POD, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}


def claim(*requests: JSON, **meta: Any) -> JSON:
    return {
        "metadata": {"name": "claim", "namespace": "a", **meta},
        "spec": {"devices": {"requests": [{"name": f"r{index}", **one} for index, one in enumerate(requests)]}},
    }


def of_class(name: str = "gpu.nvidia.com", **more: Any) -> JSON:
    return {"deviceClassName": name, **more}


OF_POD = {
    "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": "p", "controller": True}],
}
ROWS: list[tuple[str, JSON, tuple[int, int, int]]] = [
    ("a pod with `nvidia.com/gpu: 2`", pod(**{"nvidia.com/gpu": "2"}), (2, 0, 0)),
    ("the claim that the scheduler makes for this pod", claim({"exactly": of_class(count=2)}, **OF_POD), (0, 2, 2)),
    ("a claim for 2 devices of the class", claim({"exactly": of_class(count=2)}), (2, 2, 2)),
    ("a claim with `allocationMode: All`", claim({"exactly": of_class(allocationMode="All")}), (32, 32, 32)),
    (
        "a claim for a device of this class or else of another",
        claim({"firstAvailable": [{"name": "a", **of_class()}, {"name": "b", **of_class("mig.nvidia.com")}]}),
        (1, 1, 1),
    ),
]


@pytest.mark.parametrize(("words", "value", "counts"), ROWS, ids=[row[0] for row in ROWS])
def test_the_page_says_what_is_counted(words: str, value: JSON, counts: tuple[int, ...]) -> None:
    gpu = DeviceClass(ObjectMeta("gpu.nvidia.com"), (), extended_resource_name="nvidia.com/gpu")
    cluster = Cluster((), (gpu, DeviceClass(ObjectMeta("mig.nvidia.com"), ())), (), ())
    owner = PodDecoder().decode({**pod(**{"nvidia.com/gpu": "2"})})
    quotas = Quotas(Snapshot(cluster, pods=(owner,)))
    usage = quotas.usage(PodDecoder().decode(value) if value.get("kind") == "Pod" else decode_claim(value, V1))
    found = tuple(int(str(usage.get(name, 0))) for name in NAMES.values())
    assert found == counts
    cells = "".join(f" {one} |" if one else " |" for one in counts)
    assert f"| {words} |{cells}\n" in PAGE


def test_the_quota_of_the_example_has_the_names_of_the_page() -> None:
    assert {NAMES["pods"], NAMES["devices"]} <= set(QUOTA["spec"]["hard"])
    assert all(f"`{name}`" in PAGE for name in NAMES.values())
