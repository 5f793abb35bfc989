# SPDX-License-Identifier: Apache-2.0
"""The examples for quotas: the rules of Kueue's webhooks, and how often Kubernetes counts a device.

Kueue's rules are those of pkg/webhooks/clusterqueue_webhook.go and pkg/config/validation.go, and the limitations of its
page on DRA (commit ff69552, after 0.19). What ResourceQuota counts is what `dra_driver.scheduler.pods.quota` computes,
which golden answers of Kubernetes check (tests/scheduler/pods).
"""

import re
from typing import Any

import pytest
import yaml

from dra_driver.kube.resource import DeviceClass, ObjectMeta
from dra_driver.kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from dra_driver.kube.resource.codec import V1, decode_claim
from dra_driver.scheduler.allocator import Cluster
from dra_driver.scheduler.pods import PodDecoder, Quotas, Snapshot
from tests.support.schemas import validate

from .commands import ROOT, blocks

JSON = dict[str, Any]

PAGE = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
KUEUE = {one["kind"]: one for one in yaml.safe_load_all((ROOT / "examples/kueue.yaml").read_text(encoding="utf-8"))}
(QUOTA,) = yaml.safe_load_all((ROOT / "examples/quota.yaml").read_text(encoding="utf-8"))
(MAPPINGS,) = (
    yaml.safe_load(content)["resources"]["deviceClassMappings"]
    for _, _, content in blocks(PAGE)
    if "deviceClassMappings:" in content
)
LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def test_the_queue_has_one_quota_for_each_resource_that_it_covers() -> None:
    (group,) = KUEUE["ClusterQueue"]["spec"]["resourceGroups"]
    assert len(set(group["coveredResources"])) == len(group["coveredResources"]) <= 64
    for flavor in group["flavors"]:
        assert [one["name"] for one in flavor["resources"]] == group["coveredResources"], "in the same order"
        assert flavor["name"] == KUEUE["ResourceFlavor"]["metadata"]["name"]
    assert KUEUE["LocalQueue"]["spec"]["clusterQueue"] == KUEUE["ClusterQueue"]["metadata"]["name"]


def test_each_class_is_mapped_once_and_to_a_resource_of_the_queue() -> None:
    covered = KUEUE["ClusterQueue"]["spec"]["resourceGroups"][0]["coveredResources"]
    classes = [name for one in MAPPINGS for name in one["deviceClassNames"]]
    assert len(MAPPINGS) <= 16
    assert len(classes) == len(set(classes))
    assert {one["name"] for one in MAPPINGS} <= set(covered)
    assert all(LABEL_KEY.fullmatch(name) for name in (*classes, *(one["name"] for one in MAPPINGS)))
    assert not {one["name"] for one in MAPPINGS} & {"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}, "those of the classes"


def test_the_job_asks_in_a_way_that_kueue_counts() -> None:
    job, template = KUEUE["Job"], KUEUE["ResourceClaimTemplate"]
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == KUEUE["LocalQueue"]["metadata"]["name"]
    (claim,) = job["spec"]["template"]["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"], "no claim by name"
    devices = template["spec"]["spec"]["devices"]
    assert set(devices) == {"requests"}, "neither constraints nor config"
    for request in devices["requests"]:
        assert set(request) == {"name", "exactly"}, "no alternatives"
        assert not {"adminAccess", "allocationMode"} & set(request["exactly"])
        assert request["exactly"]["deviceClassName"] in {name for one in MAPPINGS for name in one["deviceClassNames"]}


@pytest.mark.parametrize("value", [QUOTA, KUEUE["Job"], KUEUE["ResourceClaimTemplate"]], ids=lambda one: one["kind"])
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
