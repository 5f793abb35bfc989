# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun repack`: plans, pods that stay, hints without a plan, and the script."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dryrun.conftest import DryRun
from tests.dryrun.drain.world import device_class, nodes, save

from .world import H100, crowded, hopper, large_pod, running, share_of, sharing

Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def ask(dryrun: DryRun, tmp_path: Path) -> Ask:
    """Asks for a 7g.80gb: exit status and document. `cluster` are the objects."""

    def asked(cluster: list[Any], *flags: str) -> tuple[int, dict[str, Any]]:
        code, out, err = dryrun(
            "repack", demand(tmp_path), "-n", "team", "--slices", save(tmp_path, *cluster), "-o", "json", *flags
        )
        assert out, err
        return code, json.loads(out)

    return asked


def demand(folder: Path) -> Path:
    file = folder / "train.yaml"
    file.write_text(large_pod(), encoding="utf-8")
    return file


def moved(document: dict[str, Any]) -> list[str]:
    return [step["pod"]["name"] for step in document["steps"]]


def one_gpu_left(**more: Any) -> list[Any]:
    """A node on which all GPUs but one have pods that stay, and a second, empty GPU's worth of slices elsewhere."""
    found = hopper(1)
    for gpu in range(1, 8):
        found += running(f"s{gpu}", H100.format(1), "3g.40gb", gpu, 0, owner="")
    return found + running("small", H100.format(1), "1g.10gb", 0, 2, **more)


def test_the_pod_with_the_least_harm_is_moved(ask: Ask) -> None:
    code, document = ask(crowded())
    assert code == 0
    assert moved(document) == ["a3"]
    assert document["optimal"]


def test_a_demand_that_fits_needs_no_moves(ask: Ask) -> None:
    code, document = ask(hopper(1))
    assert code == 0
    assert document["moves"] == 0


def test_more_moves_than_allowed_end_with_1(ask: Ask) -> None:
    assert ask(crowded(), "--at-most", "0")[0] == 1
    assert ask(crowded(), "--at-most", "1")[0] == 0


@pytest.mark.parametrize(
    ("more", "extra", "why"),
    [
        ({"owner": ""}, [], "no controller makes it again"),
        ({"owner": "DaemonSet"}, [], "a DaemonSet keeps it on its node"),
        ({"owner": "RayCluster"}, [], "RayCluster small is not known to make it again (--owner RayCluster if it does)"),
        ({"priority": 5}, [], "its priority 5 is higher than that of the demand"),
        (
            {},
            [
                {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": "b", "namespace": "team"},
                    "spec": {"selector": {"matchLabels": {"app": "small"}}},
                    "status": {"disruptionsAllowed": 0},
                }
            ],
            "its PodDisruptionBudget allows no disruption now",
        ),
    ],
)
def test_a_pod_that_cannot_be_moved_is_named_with_the_reason(
    more: dict[str, Any], extra: list[Any], why: str, ask: Ask
) -> None:
    code, document = ask([*one_gpu_left(**more), *extra])
    assert code == 1
    assert f"on {H100.format(1)}, team/small is in the way and stays: {why}" in document["reasons"]


def test_pod_in_the_way_of_the_second_of_two_nodes_is_named(dryrun: DryRun, tmp_path: Path) -> None:
    slices = save(tmp_path, *hopper(2), *running("small", H100.format(1), "1g.10gb", 0, 2, owner=""))
    code, out, _ = dryrun("repack", "--whole-nodes", "2", "--slices", slices)
    assert code == 1
    assert f"on {H100.format(1)}, team/small is in the way and stays: no controller makes it again" in out


def test_a_pod_stays_if_a_quota_would_refuse_its_successor(dryrun: DryRun, tmp_path: Path) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "team"},
        "spec": {"hard": {"pods": "20", "requests.cpu": "1"}},
        "status": {"used": {"pods": "8", "requests.cpu": "8"}},
    }
    slices = save(tmp_path, *one_gpu_left(), quota)
    code, out, _ = dryrun("repack", "--free", "7g.80gb", "--slices", slices)
    assert code == 1
    assert "ResourceQuota q is exceeded (requests.cpu: 8 of 1), so that the new pod is refused" in out


def test_an_owner_that_makes_pods_again_can_be_named(ask: Ask) -> None:
    code, document = ask(one_gpu_left(owner="RayCluster"), "--owner", "RayCluster")
    assert code == 0
    assert moved(document) == ["small"]


def test_pods_can_be_excluded_by_their_labels(ask: Ask) -> None:
    _, document = ask(crowded(), "-l", "app=a3", "--never")
    assert moved(document) != ["a3"]
    assert document["moves"] == 1


def test_only_pods_with_some_labels_can_be_moved(ask: Ask) -> None:
    assert moved(ask(crowded(), "-l", "app=b5")[1]) == ["b5"]


def test_without_a_plan_a_node_type_and_another_profile_are_named(ask: Ask) -> None:
    _, document = ask(one_gpu_left(owner=""))
    assert any("h100x8-mig" in text for text in document["helps"])
    assert any(text.startswith("another profile: free now are") for text in document["helps"])


def test_goals_need_no_demand(dryrun: DryRun, tmp_path: Path) -> None:
    slices = save(tmp_path, *crowded())
    for flags, moves in ((("--free", "7g.80gb=2"), 2), (("--whole-gpus", "3"), 3), (("--whole-nodes", "1"), 8)):
        _, out, err = dryrun("repack", *flags, "--slices", slices, "-o", "json")
        assert not err
        assert json.loads(out)["moves"] == moves


def test_a_cordon_is_the_guard_of_releases_without_taint_rules(ask: Ask) -> None:
    _, document = ask(crowded(), "--kubernetes-version", "1.36")
    assert document["guard"] == "cordon"
    (step,) = document["steps"]
    assert step["from"]["node"] in step["guard"]["nodes"]
    assert step["to"]["node"] not in step["guard"]["nodes"]


def test_the_table_has_pictures_before_and_after(dryrun: DryRun, tmp_path: Path) -> None:
    code, out, _ = dryrun("repack", demand(tmp_path), "-n", "team", "--slices", save(tmp_path, *crowded()))
    assert code == 0
    assert "1 pod to move, the fewest that do" in out
    before, after = out.split(f"{H100.format(1)} after:")
    assert "1g.10gb" in before
    assert "7g.80gb *" in after


def script_of(dryrun: DryRun, tmp_path: Path, *flags: str) -> str:
    slices = save(tmp_path, *crowded())
    code, out, _ = dryrun("repack", demand(tmp_path), "-n", "team", "--slices", slices, "-o", "script", *flags)
    assert code == 0
    return out


def test_the_script_keeps_the_place_free_evicts_and_checks_in_this_order(dryrun: DryRun, tmp_path: Path) -> None:
    script = script_of(dryrun, tmp_path)
    words = ["kubectl apply -f -", "pods/a3/eviction", "--at-most 0", "train.yaml\n", "kubectl delete devicetaintrules"]
    places = [script.index(word) for word in words]
    assert places == sorted(places)


def test_the_check_is_the_same_question_with_fewer_moves(dryrun: DryRun, tmp_path: Path) -> None:
    script = script_of(dryrun, tmp_path, "-l", "app=x", "--never")
    question = f"dra-dryrun repack {tmp_path}/train.yaml --selector app=x --never"
    assert f"{question} --slices {tmp_path}/cluster.json --namespace team --at-most 0 > /dev/null" in script


def test_the_script_of_some_steps_does_not_create_the_demand(dryrun: DryRun, tmp_path: Path) -> None:
    slices = save(tmp_path, *crowded())
    _, out, _ = dryrun("repack", "--free", "7g.80gb=2", "--slices", slices, "-o", "script", "--steps", "1")
    assert out.count("/eviction") == 1
    assert "# the end" not in out


def test_wrong_flags_are_errors(dryrun: DryRun, tmp_path: Path) -> None:
    slices = save(tmp_path, *crowded())
    for flags, text in (
        (("--free", "7g.80gb=x"), "write PROFILE=COUNT"),
        (("--free", "9g.90gb"), "no device has the profile 9g.90gb"),
        (("--free", "7g.80gb", "--never"), "--never is for the pods that -l selects"),
        (("--free", "7g.80gb", "-l", "a=b=c"), "'a=b=c' is none of KEY=VALUE"),
        (("--free", "7g.80gb", "--steps", "1"), "--steps is for -o script"),
        (("--report", "--free", "7g.80gb"), "--report is about all GPUs"),
        (
            ("--free", "7g.80gb", "--guard", "taint-rules", "--feature-gates", "DRADeviceTaintRules=false"),
            "use --guard cordon",
        ),
    ):
        code, _, err = dryrun("repack", *flags, "--slices", slices)
        assert code == 2
        assert text in err


def test_the_report_counts_what_a_packing_adds(dryrun: DryRun, tmp_path: Path) -> None:
    """16 pods, of which 15 take half a GPU each and one a slice, need 8 of 16 GPUs."""
    code, out, _ = dryrun("repack", "--report", "--slices", save(tmp_path, *crowded()), "-o", "json")
    assert code == 0
    (model,) = json.loads(out)["models"]
    assert model["freeNow"] == 0
    assert model["packed"] == 8
    assert model["atMost"] >= 8


def test_pods_that_stay_are_not_packed(dryrun: DryRun, tmp_path: Path) -> None:
    slices = save(tmp_path, *crowded())
    code, out, _ = dryrun("repack", "--report", "--slices", slices, "-l", "app", "--never", "-o", "json")
    assert code == 0
    assert json.loads(out)["models"][0] == {
        "model": "NVIDIA H100 80GB HBM3",
        "freeNow": 0,
        "packed": 0,
        "atMost": 0,
    }


def test_a_share_moves_so_that_a_larger_one_fits(tmp_path: Path, dryrun: DryRun) -> None:
    """Each of four L40S with 48 GB has a share of 20 or 10 GiB, and the demand is one of 40 GiB."""
    cluster = [*nodes("l40sx4-shares", 1), device_class()]
    for gpu in range(4):
        cluster += sharing(f"s{gpu}", gpu, 10 if gpu == 2 else 20)
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "large", "namespace": "team"},
        "spec": share_of(40),
    }
    file = tmp_path / "claim.json"
    file.write_text(json.dumps(claim), encoding="utf-8")
    code, out, err = dryrun("repack", file, "--slices", save(tmp_path, *cluster), "-o", "json")
    assert code == 0, out + err
    (step,) = json.loads(out)["steps"]
    (placement,) = json.loads(out)["placements"]
    assert placement["devices"] == step["from"]["devices"]
    assert step["to"]["devices"] != step["from"]["devices"]


def test_pods_without_devices_move_if_the_node_has_too_little_cpu(dryrun: DryRun, tmp_path: Path) -> None:
    """GPUs are free on the first node, and its CPUs are in use."""
    cluster = hopper(2)
    for number in (1, 2):
        for gpu in range(8):
            cluster += running(f"n{number}g{gpu}", H100.format(number), "7g.80gb", gpu, 0) if number == 2 else []
    busy, _ = running("busy", H100.format(1), "1g.10gb", 0, 0)
    del busy["spec"]["resourceClaims"], busy["status"]["resourceClaimStatuses"]
    busy["spec"]["containers"] = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "50"}}}]
    file = demand(tmp_path)
    file.write_text(file.read_text(encoding="utf-8").replace("cpu: '1'", "cpu: '30'"), encoding="utf-8")
    slices = save(tmp_path, *cluster, busy)
    code, out, err = dryrun("repack", file, "-n", "team", "--slices", slices, "-o", "json")
    assert code == 0, out + err
    assert moved(json.loads(out)) == ["busy"]
    assert json.loads(out)["placements"][0]["node"] == H100.format(1)


def test_units_of_several_sizes_do_not_take_the_places_of_each_other(dryrun: DryRun, tmp_path: Path) -> None:
    """The first free place for the small unit is the place of the large one, which is kept free meanwhile."""
    slices = save(tmp_path, *hopper(1), *[one for gpu in range(1, 8) for one in full(gpu)])
    code, out, _ = dryrun("repack", "--free", "1g.10gb=3", "--free", "3g.40gb", "--slices", slices, "-o", "json")
    assert code == 0
    document = json.loads(out)
    assert document["moves"] == 0
    devices = [device["device"] for placement in document["placements"] for device in placement["devices"]]
    assert len(set(devices)) == 4


def full(gpu: int) -> list[Any]:
    """A pod that has a whole GPU."""
    return running(f"w{gpu}", H100.format(1), "7g.80gb", gpu, 0)
