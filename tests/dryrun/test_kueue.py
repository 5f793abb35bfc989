# SPDX-License-Identifier: Apache-2.0
"""What `fit` says about pods in a queue of Kueue: the charges, and whether quota or devices stop them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.dryrun.kueue.objects import Kueue, QuotaLimits, QuotaNode, kueue_of
from dra_driver.dryrun.kueue.queues import QuotaTree
from dra_driver.kube.kinds import CONFIG_MAPS, NAMESPACES, kind_named
from dra_driver.kube.resource import Quantity
from tests.docs.commands import ROOT
from tests.docs.test_quotas import CHARGES, KUEUE, KUEUE_MEMORY, MAPPINGS, MEMORY_MAPPINGS
from tests.dryrun.conftest import DryRun
from tests.dryrun.drain.world import device_class
from tests.dryrun.migrate.test_cluster import install_kind
from tests.support.apiserver import embedded

JSON = dict[str, Any]
KEY = ("gpu-nodes", "claims.nvidia.com/gpu")


def configuration(mappings: list[JSON], **gates: bool) -> JSON:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "resources": {"deviceClassMappings": mappings},
        "featureGates": gates,
    }


def write(folder: Path, *objects: JSON) -> Path:
    file = folder / "objects.yaml"
    file.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper), encoding="utf-8")
    return file


def example(name: dict[str, JSON] = KUEUE) -> dict[str, JSON]:
    return copy.deepcopy(dict(name))


def asked(dryrun: DryRun, file: Path, *arguments: str) -> tuple[int, JSON]:
    """The exit status, and the verdict of the only queue."""
    code, out, _ = dryrun("fit", file, "--with-node", "h100x8", *arguments, "-o", "json")
    (queue,) = json.loads(out)["queues"]
    return code, queue


def charged(queue: JSON) -> dict[str, str]:
    return {charge["resource"]: charge["amount"] for charge in queue["charges"]}


def test_devices_are_counted_by_the_mapping_of_their_class(dryrun: DryRun, tmp_path: Path) -> None:
    file = write(tmp_path, *example().values(), configuration(MAPPINGS))
    code, queue = asked(dryrun, file)
    assert code == 0
    assert charged(queue) == {"cpu": "2", "memory": "2Gi", "claims.nvidia.com/gpu": "4"}
    assert {"resource": "claims.nvidia.com/gpu", "flavor": "gpu-nodes"} in queue["flavors"]
    assert queue["admits"] is True


def test_configuration_may_be_the_config_map_of_the_manager(dryrun: DryRun, tmp_path: Path) -> None:
    data = {"controller_manager_config.yaml": yaml.dump(configuration(MAPPINGS), Dumper=yaml.CSafeDumper)}
    metadata = {"name": "kueue-manager-config", "namespace": "kueue-system"}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    code, queue = asked(dryrun, write(tmp_path, *example().values(), config_map))
    assert (code, queue["admits"]) == (0, True)


def test_quota_that_is_used_stops_a_job_whose_devices_are_free(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    usage = [{"name": "gpu-nodes", "resources": [{"name": KEY[1], "total": "1"}]}]
    objects["ClusterQueue"]["status"] = {"flavorsReservation": usage}
    file = write(tmp_path, *objects.values(), configuration(MAPPINGS))
    code, queue = asked(dryrun, file)
    assert code == 1
    assert queue["reasons"] == ["flavor gpu-nodes: claims.nvidia.com/gpu needs 4, and 3 of 4 is free"]
    _, out, _ = dryrun("fit", file, "--with-node", "h100x8")
    assert "stopped by: quota\n" in out


def test_devices_stop_a_job_that_has_quota(dryrun: DryRun, tmp_path: Path) -> None:
    file = write(tmp_path, *example().values(), configuration(MAPPINGS))
    code, out, _ = dryrun("fit", file, "--with-node", "l4x4", "--drain", "new-l4x4-1", "--with-node", "gh200x1")
    assert code == 1
    assert "Kueue: has quota" in out
    assert "stopped by: nodes or devices\n" in out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deviceClassName": "mig.nvidia.com"}, "DeviceClass mig.nvidia.com is not in deviceClassMappings"),
        ({"allocationMode": "All"}, "has the allocation mode All"),
    ],
)
def test_requests_that_kueue_does_not_admit(change: JSON, reason: str, dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    exactly = objects["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    exactly.update(change)
    if "allocationMode" in change:
        del exactly["count"]
    code, queue = asked(dryrun, write(tmp_path, *objects.values(), configuration(MAPPINGS)))
    assert code == 1
    assert reason in queue["reasons"][0]


def test_alternatives_are_not_admitted(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    request = objects["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][0]
    request["firstAvailable"] = [{"name": "one", **request.pop("exactly")}]
    _, queue = asked(dryrun, write(tmp_path, *objects.values(), configuration(MAPPINGS)))
    assert "firstAvailable" in queue["reasons"][0]


def test_queue_without_a_configuration_is_not_known(dryrun: DryRun, tmp_path: Path) -> None:
    code, queue = asked(dryrun, write(tmp_path, *example().values()))
    assert code == 3
    assert queue["admits"] is None


def test_missing_queue_is_named(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    del objects["LocalQueue"]
    code, queue = asked(dryrun, write(tmp_path, *objects.values(), configuration(MAPPINGS)))
    assert (code, queue["reasons"]) == (1, ["there is no LocalQueue default/gpus"])


def test_stopped_queue_admits_nothing(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    objects["ClusterQueue"]["spec"]["stopPolicy"] = "Hold"
    _, queue = asked(dryrun, write(tmp_path, *objects.values(), configuration(MAPPINGS)))
    assert queue["reasons"] == ["the queue is stopped (stopPolicy)"]


def test_flavor_of_other_nodes_is_left_out(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    pod = objects["Job"]["spec"]["template"]["spec"]
    pod["nodeSelector"] = {"nvidia.com/gpu.present": "false"}
    _, queue = asked(dryrun, write(tmp_path, *objects.values(), configuration(MAPPINGS)))
    assert "its nodes have nvidia.com/gpu.present=true, and the pod wants false" in queue["reasons"][0]


def test_second_job_gets_what_the_first_has_left(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    second = copy.deepcopy(objects["Job"])
    second["metadata"]["name"] = "second"
    file = write(tmp_path, *objects.values(), second, configuration(MAPPINGS))
    _, out, _ = dryrun("fit", file, "--with-node", "h100x8", "-o", "json")
    assert [queue["admits"] for queue in json.loads(out)["queues"]] == [True, False]


def test_pods_without_the_label_are_in_no_queue(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    del objects["Job"]["metadata"]["labels"]
    _, out, _ = dryrun("fit", write(tmp_path, *objects.values()), "--with-node", "h100x8", "-o", "json")
    assert json.loads(out)["queues"] == []


@pytest.mark.parametrize(("words", "kind", "device_class", "condition", "amount"), CHARGES)
def test_counter_is_charged_as_the_page_says(
    words: str, kind: str, device_class: str, condition: str, amount: str, dryrun: DryRun, tmp_path: Path
) -> None:
    objects = example(KUEUE_MEMORY)
    expression = f"device.attributes['gpu.nvidia.com'].{condition}" if condition else "true"
    request = {"deviceClassName": device_class, "selectors": [{"cel": {"expression": expression}}]}
    objects["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][0]["exactly"] = request
    objects["Job"]["spec"] |= {"parallelism": 1, "completions": 1}
    file = write(tmp_path, *objects.values(), configuration(MEMORY_MAPPINGS))
    _, out, _ = dryrun("fit", file, "--with-node", kind, "-o", "json")
    (queue,) = json.loads(out)["queues"]
    assert charged(queue)["claims.nvidia.com/gpu-memory"] == amount, words


def test_counter_that_no_device_has_is_waited_for(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example(KUEUE_MEMORY)
    request = {"deviceClassName": "gpu.nvidia.com"}
    objects["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][0]["exactly"] = request
    _, queue = asked(dryrun, write(tmp_path, *objects.values(), configuration(MEMORY_MAPPINGS)))
    assert queue["reasons"] == ["request mig: no device that matches has the counter memory"]


CAPACITY = [
    {
        "name": "claims.nvidia.com/gpu-memory",
        "deviceClassNames": ["gpu.nvidia.com"],
        "sources": [
            {
                "capacity": {
                    "name": "memory",
                    "driver": "gpu.nvidia.com",
                    "deviceSelector": {"cel": {"expression": "true"}},
                }
            }
        ],
    }
]


@pytest.mark.parametrize(("capacity", "amount"), [({}, "23034Mi"), ({"requests": {"memory": "5Gi"}}, "5Gi")])
def test_capacity_is_charged_as_requested_or_as_a_whole(
    capacity: JSON, amount: str, dryrun: DryRun, tmp_path: Path
) -> None:
    objects = example(KUEUE_MEMORY)
    request = {"deviceClassName": "gpu.nvidia.com", **({"capacity": capacity} if capacity else {})}
    objects["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][0]["exactly"] = request
    objects["Job"]["spec"] |= {"parallelism": 1, "completions": 1}
    gates = {"KueueDRAIntegrationConsumableCapacity": True}
    file = write(tmp_path, *objects.values(), configuration(CAPACITY, **gates))
    policy = tmp_path / "policy.yaml"
    policy.write_text("gpus: [{shares: memory}]", encoding="utf-8")
    _, out, _ = dryrun("fit", file, "--with-node", "l4x4", "--policy", policy, "-o", "json")
    (queue,) = json.loads(out)["queues"]
    assert queue["reasons"] == []
    assert charged(queue)["claims.nvidia.com/gpu-memory"] == amount
    plain = write(tmp_path, *objects.values(), configuration(CAPACITY))
    _, queue = asked(dryrun, plain)
    assert "which needs KueueDRAIntegrationConsumableCapacity" in queue["reasons"][0]


def test_examples_have_the_fields_that_are_read() -> None:
    values = yaml.safe_load_all((ROOT / "examples/kueue.yaml").read_text(encoding="utf-8"))
    kueue = kueue_of(values)
    assert kueue.local == {("default", "gpus"): ("gpus", False)}
    assert kueue.queues["gpus"].limits[KEY].nominal == Quantity.of(4)
    assert kueue.flavors["gpu-nodes"].labels == {"nvidia.com/gpu.present": "true"}


# Cohorts


def queue(
    name: str, nominal: int, used: int = 0, borrowing: int | None = None, lending: int | None = None
) -> QuotaNode:
    limits = QuotaLimits(
        Quantity.of(nominal),
        None if borrowing is None else Quantity.of(borrowing),
        None if lending is None else Quantity.of(lending),
    )
    return QuotaNode(name, "all", (), {KEY: limits}, {KEY: Quantity.of(used)})


def available(own: QuotaNode, *others: QuotaNode) -> int:
    """What a queue of a cohort may still use, in whole units."""
    tree = QuotaTree(Kueue({one.name: one for one in (own, *others)}))
    return tree.available(own, KEY) // Quantity.of(1).nanos


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (queue("a", 4, 1), queue("b", 4), 7),
        (queue("a", 4, 1, borrowing=2), queue("b", 4), 5),
        (queue("a", 4, 1, borrowing=0), queue("b", 4), 3),
        (queue("a", 4, 1), queue("b", 4, lending=1), 4),
        (queue("a", 4, 1), queue("b", 4, 6), 1),
        (queue("a", 4, 1, lending=0), queue("b", 4, 6), 1),
        (queue("a", 4, 6), queue("b", 4), 2),
    ],
)
def test_queue_of_a_cohort_borrows_what_others_lend(own: QuotaNode, other: QuotaNode, expected: int) -> None:
    assert available(own, other) == expected


AMOUNTS = st.integers(0, 8)
LIMITS = st.none() | AMOUNTS


@given(AMOUNTS, AMOUNTS, AMOUNTS, LIMITS)
def test_without_borrowing_a_queue_has_at_most_its_own_quota(
    nominal: int, other: int, used: int, lending: int | None
) -> None:
    found = available(queue("a", nominal, min(used, nominal), borrowing=0), queue("b", other, lending=lending))
    assert found == nominal - min(used, nominal)


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_without_limits_a_cohort_is_one_pot(nominal: int, other: int, used: int, used_of_other: int) -> None:
    found = available(queue("a", nominal, used), queue("b", other, used_of_other))
    assert found == nominal + other - used - used_of_other


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, LIMITS, LIMITS)
def test_limits_never_give_more_than_the_whole_pot(
    nominal: int, other: int, used: int, used_of_other: int, borrowing: int | None, lending: int | None
) -> None:
    own = queue("a", nominal, min(used, nominal), borrowing=borrowing)
    found = available(own, queue("b", other, min(used_of_other, other), lending=lending))
    assert found <= nominal + other - min(used, nominal) - min(used_of_other, other)
    assert found >= nominal - min(used, nominal)


@pytest.mark.cluster
def test_queues_and_configuration_of_a_cluster_are_read(dryrun: DryRun, tmp_path: Path) -> None:
    objects = example()
    version = objects["ClusterQueue"]["apiVersion"]
    data = {"controller_manager_config.yaml": yaml.dump(configuration(MAPPINGS), Dumper=yaml.CSafeDumper)}
    with embedded(tmp_path) as (_, kubeconfig, client):
        for kind in ("ClusterQueue", "LocalQueue", "ResourceFlavor"):
            namespaced = kind == "LocalQueue"
            install_kind(client, version, kind, namespaced=namespaced)
            where = kind_named(version, kind, namespaced=namespaced)
            client.create(where, objects[kind], "default" if namespaced else "")
        client.create(NAMESPACES, {"metadata": {"name": "kueue-system"}})
        client.create(CONFIG_MAPS, {"metadata": {"name": "kueue-manager-config"}, "data": data}, "kueue-system")
        file = write(tmp_path, objects["Job"], objects["ResourceClaimTemplate"], device_class())
        code, out, err = dryrun("fit", file, "--kubeconfig", kubeconfig, "-o", "json")
    assert code in (0, 1), err
    (found,) = json.loads(out)["queues"]
    assert (found["clusterQueue"], found["admits"]) == ("gpus", True)
    assert charged(found)["claims.nvidia.com/gpu"] == "4"
