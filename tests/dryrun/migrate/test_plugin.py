# SPDX-License-Identifier: Apache-2.0
"""The configurations of the README of NVIDIA's device plugin, and what the driver publishes in their place.

Each case is a node (or two) with a configuration and pods. The plan is checked as the user gets it, and what pods get
is decided on the planned slices, so that a wrong policy or DeviceClass shows.
"""

import json
from pathlib import Path

import pytest

from tests.charts.rendering import render
from tests.dryrun.conftest import DryRun

from .build import (
    A100,
    JSON,
    T4,
    Migrate,
    config,
    config_map,
    deployment,
    given,
    mig_parted,
    node,
    plugin,
    pod,
    sharing,
    verdicts,
)

GPUS = {"gpu": {"extendedResourceName": "nvidia.com/gpu"}}
FITS = "runs unchanged"


def test_the_quick_start_needs_only_the_name_of_the_resource(migrate: Migrate) -> None:
    found = migrate(
        plugin(FAIL_ON_INIT_ERROR="false"),
        node("n", T4, 1, gpu=1, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]),
        pod(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        options=("--verify",),
    )
    assert found["code"] == 0
    assert found["values"] == {"deviceClasses": GPUS}
    assert (found["deviceClasses"], found["planNotes"]) == ([], [])
    assert found["replaced"] == ["DaemonSet nvidia-device-plugin/nvdp"]
    assert [one["featureGate"] for one in found["needs"]] == ["DRAExtendedResource"]
    assert verdicts(found) == {"Pod gpu-pod": FITS}
    assert given(found) == {"Pod gpu-pod": ["n/gpu-0"]}


def test_a_node_is_known_without_gpu_feature_discovery(migrate: Migrate) -> None:
    found = migrate(plugin(), node("n", gpu=2), pod(count=2), options=("--verify",))
    assert given(found) == {"Pod gpu-pod": ["n/gpu-0", "n/gpu-1"]}


@pytest.mark.parametrize(
    ("container", "file", "expected"),
    [
        (plugin(), {}, "none"),
        (plugin(MIG_STRATEGY="mixed"), {}, "mixed"),
        (plugin("--mig-strategy=single", MIG_STRATEGY="mixed"), {}, "single"),
        (plugin("--mig-strategy", "single", "--pass-device-specs"), {}, "single"),
        (plugin(configs="c"), config("mixed"), "mixed"),
        (plugin(configs="c", MIG_STRATEGY="single"), config("mixed"), "single"),
        (plugin("--mig-strategy=none", configs="c", MIG_STRATEGY="single"), config("mixed"), "none"),
    ],
    ids=["default", "env", "flag over env", "flag and value", "file", "env over file", "flag over both"],
)
def test_flags_count_more_than_the_environment_and_the_file(
    migrate: Migrate, container: JSON, file: JSON, expected: str
) -> None:
    """On a node whose MIG devices each strategy offers in its own way."""
    single = node("n", f"{A100}-MIG-1g.5gb", 7) if expected == "single" else node("n", A100, 1)
    single["metadata"]["labels"]["nvidia.com/mig-1g.5gb.count"] = "7"
    found = migrate(container, single, *([config_map("c", config=file)] if file else []))
    resources = {
        "none": {"nvidia.com/gpu": 1},
        "single": {"nvidia.com/gpu": 7},
        "mixed": {"nvidia.com/mig-1g.5gb": 7},
    }
    assert found["nodes"][0]["resources"] == resources[expected]


def test_strategy_single_gives_mig_devices_as_gpus(migrate: Migrate) -> None:
    found = migrate(
        plugin(MIG_STRATEGY="single"),
        mig_parted(all_1g__5gb=[("all", {"1g.5gb": 7})]),
        node("n", f"{A100}-MIG-1g.5gb", 56, gpu=56, labels={"nvidia.com/mig.config": "all-1g--5gb"}),
        pod(nodeSelector={"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb"}),
        deployment(2),
        options=("--verify",),
    )
    assert found["nodes"][0]["gpus"] == f"8 x {A100} (7 x 1g.5gb)"
    assert found["values"] == {
        "policy": {"gpus": [{"mig": "static"}]},
        "deviceClasses": {"mig": {"extendedResourceName": "nvidia.com/gpu"}},
    }
    assert "GPU Feature Discovery" in found["workloads"][0]["notes"][0]
    assert [one["profile"] for demand in found["verification"]["demands"] for one in demand["devices"]] == [
        "1g.5gb"
    ] * 3


def test_strategy_mixed_names_profiles_as_the_plugin_spells_them(migrate: Migrate) -> None:
    profiles = {"1g.5gb": 1, "1g.5gb+me": 1, "2g.10gb": 1}
    names = ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me", "nvidia.com/mig-2g.10gb"]
    found = migrate(
        plugin(MIG_STRATEGY="mixed"),
        mig_parted(half=[([0], profiles), ([1], None)]),
        node("n", A100, 2, gpu=1, labels={"nvidia.com/mig.config": "half"}),
        *(pod(name, name=name.rpartition("-")[2].replace(".", "-")) for name in names),
        pod(),
        options=("--verify",),
    )
    assert found["nodes"][0]["resources"] == {**dict.fromkeys(names, 1), "nvidia.com/gpu": 1}
    assert found["values"]["deviceClasses"] == {**GPUS, "migProfiles": list(profiles)}
    got = {one["name"]: one["devices"][0]["profile"] for one in found["verification"]["demands"]}
    assert list(got.values()) == [*profiles, None]


@pytest.mark.parametrize(("state", "resource"), [("success", "nvidia.com/mig-1g.5gb"), ("failed", "nvidia.com/gpu")])
def test_mig_config_counts_only_after_mig_parted_succeeded(migrate: Migrate, state: str, resource: str) -> None:
    labels = {"nvidia.com/mig.config": "all", "nvidia.com/mig.config.state": state}
    groups = mig_parted(all=[("all", {"1g.5gb": 7})])
    found = migrate(plugin(MIG_STRATEGY="mixed"), groups, node("n", A100, 1, gpu=1, labels=labels))
    assert list(found["nodes"][0]["resources"]) == [resource]


def test_mig_devices_are_counted_where_mig_parted_is_not_known(migrate: Migrate) -> None:
    labels = {"nvidia.com/mig-1g.5gb.count": "7", "nvidia.com/mig-3g.20gb.count": "2"}
    found = migrate(plugin(MIG_STRATEGY="mixed"), node("n", A100, 4, gpu=2, labels=labels))
    assert found["nodes"][0]["resources"] == {
        "nvidia.com/gpu": 2,
        "nvidia.com/mig-1g.5gb": 7,
        "nvidia.com/mig-3g.20gb": 2,
    }
    assert "it is assumed that its last 2 GPUs have the MIG devices" in found["planNotes"][0]
    unlabelled = migrate(plugin(MIG_STRATEGY="mixed"), node("n", gpu=2, mig_1g__5gb=8))
    assert unlabelled["nodes"][0]["gpus"] == "2 x GPU, 2 x GPU (4 x 1g.5gb)"


def test_a_node_that_the_strategy_single_refuses_is_noted(migrate: Migrate) -> None:
    found = migrate(plugin(MIG_STRATEGY="single"), node("n", f"{A100}-MIG-INVALID", 0))
    assert found["nodes"][0]["resources"] == {}
    assert found["planNotes"][0].startswith("n: it offers no GPU")


def test_time_slicing_is_a_number_of_shares(migrate: Migrate) -> None:
    found = migrate(
        plugin(configs="c"),
        config_map("c", config=config(sharing=sharing({"nvidia.com/gpu": 10}))),
        node("n", f"{T4}-SHARED", 2, gpu=20),
        deployment(21),
        options=("--verify",),
    )
    assert found["nodes"][0]["resources"] == {"nvidia.com/gpu": 20}
    assert found["values"] == {"policy": {"gpus": [{"shares": 10}]}, "deviceClasses": GPUS}
    assert [one["featureGate"] for one in found["needs"]] == ["DRAExtendedResource", "DRAConsumableCapacity"]
    fits = [one["fits"] for one in found["verification"]["demands"]]
    assert fits == [True] * 20 + [False]
    assert found["code"] == 1


def test_renamed_shares_and_whole_gpus_of_another_node_are_told_apart(migrate: Migrate) -> None:
    found = migrate(
        plugin(configs="c", default="whole"),
        config_map(
            "c",
            whole=config(),
            shared=config(
                sharing=sharing({"nvidia.com/gpu": 3}, renameByDefault=True, failRequestsGreaterThanOne=True)
            ),
        ),
        node("shared", T4, 1, labels={"nvidia.com/device-plugin.config": "shared"}),
        node("whole", A100, 1, gpu=1),
        deployment(4, "nvidia.com/gpu.shared", "part"),
        deployment(2, name="all"),
        options=("--verify",),
    )
    assert found["values"] == {"policy": {"gpus": [{"match": {"nodes": ["shared"]}, "shares": 3}]}}
    assert {one["spec"]["extendedResourceName"]: one["metadata"]["name"] for one in found["deviceClasses"]} == {
        "nvidia.com/gpu": "gpu.extended.nvidia.com",
        "nvidia.com/gpu.shared": "gpu.shared.extended.nvidia.com",
    }
    places = [one["node"] for one in found["verification"]["demands"]]
    assert places == ["shared"] * 3 + [None] + ["whole", None]


def test_mps_is_shares_with_limits(migrate: Migrate) -> None:
    found = migrate(
        plugin(configs="c"),
        config_map("c", config=config(sharing=sharing({"nvidia.com/gpu": 4}, "mps"))),
        node("n", f"{T4}-SHARED", 1, gpu=4),
        pod(),
        options=("--verify",),
    )
    assert found["values"] == {
        "policy": {"gpus": [{"shares": {"mode": 4, "enforce": "mps"}}]},
        "deviceClasses": GPUS,
        "mps": {"enabled": True},
    }
    (device,) = found["verification"]["demands"][0]["devices"]
    assert device["sharesEnforcedBy"] == "mps"
    assert device["consumed"]["shares"] == "1"


@pytest.mark.parametrize(
    ("daemon_set", "configs", "label", "expected"),
    [
        (plugin(configs="c", default="config0"), ("config0", "config1"), "", "config0"),
        (plugin(configs="c", default="config0"), ("config0", "config1"), "config1", "config1"),
        (plugin(configs="c", default="config0"), ("config0", "config1"), "unknown", "config0"),
        (plugin(configs="c"), ("default", "config1"), "", "default"),
        (plugin(configs="c"), ("config1",), "", "config1"),
        (plugin(configs="c", fallbacks="empty"), ("config0", "config1"), "", ""),
    ],
    ids=["default", "label", "unknown label", "named default", "the only one", "none"],
)
def test_a_node_has_the_configuration_that_config_manager_chooses(
    migrate: Migrate, daemon_set: JSON, configs: tuple[str, ...], label: str, expected: str
) -> None:
    labels = {"nvidia.com/device-plugin.config": label} if label else {}
    settings = {name: config() for name in configs}
    found = migrate(daemon_set, config_map("c", **settings), node("n", T4, 1, labels=labels))
    assert found["nodes"][0]["configuration"] == expected
    assert bool(found["planNotes"]) == (label == "unknown")


def test_each_group_of_nodes_has_rules_of_its_own(migrate: Migrate) -> None:
    labels = {"nvidia.com/device-plugin.config": "t4-config"}
    found = migrate(
        plugin(configs="c", default="default"),
        config_map("c", **{"default": config("mixed"), "t4-config": config(sharing=sharing({"gpu": 2}))}),
        *(node(f"t4-{number}", T4, 1, labels=labels) for number in (1, 2)),
        node("a100", A100, 8, gpu=8),
    )
    assert found["values"]["policy"]["gpus"] == [
        {"match": {"nodes": ["t4-1", "t4-2"]}, "shares": 2},
        {"match": {"nodes": ["a100"]}, "mig": "static"},
    ]
    assert any("a node that joins later" in note for note in found["planNotes"])


def test_only_the_split_gpus_of_a_node_are_shared(migrate: Migrate) -> None:
    resources = {"nvidia.com/mig-1g.5gb": 2}
    found = migrate(
        plugin(configs="c"),
        config_map("c", config=config("mixed", sharing=sharing(resources, renameByDefault=True))),
        mig_parted(custom=[([0, 1], None), ([2], {"1g.5gb": 7})]),
        node("n", A100, 3, gpu=2, labels={"nvidia.com/mig.config": "custom"}),
        deployment(15, "nvidia.com/mig-1g.5gb.shared"),
        options=("--verify",),
    )
    assert found["values"]["policy"]["gpus"] == [{"mig": "static"}, {"match": {"indexes": [2]}, "shares": 2}]
    assert found["nodes"][0]["resources"] == {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.5gb.shared": 14}
    assert [one["fits"] for one in found["verification"]["demands"]] == [True] * 14 + [False]


def test_sharing_that_the_policy_cannot_express_is_noted(migrate: Migrate) -> None:
    found = migrate(
        config("mixed", sharing=sharing({"nvidia.com/mig-1g.5gb": 4})),
        mig_parted(custom=[("all", {"1g.5gb": 1, "2g.10gb": 1})]),
        node("n", A100, 1, labels={"nvidia.com/mig.config": "custom"}),
    )
    assert found["values"]["policy"]["gpus"] == [{"mig": "static", "shares": 4}]
    assert "nvidia.com/mig-1g.5gb 4, nvidia.com/mig-2g.10gb 1" in found["planNotes"][0]


def test_device_with_two_names_is_noted(migrate: Migrate) -> None:
    found = migrate(
        plugin(configs="c"),
        config_map("c", single=config("single"), default=config("mixed")),
        node("a", f"{A100}-MIG-1g.5gb", 7, labels={"nvidia.com/device-plugin.config": "single"}),
        node("b", A100, 1, labels={"nvidia.com/mig-1g.5gb.count": "7"}),
    )
    assert any(
        note.startswith("nvidia.com/gpu and nvidia.com/mig-1g.5gb each get mig 1g.5gb") for note in found["planNotes"]
    )


@pytest.mark.parametrize(
    ("sections", "variables", "values", "note"),
    [
        ({"flags": {"nvidiaDriverRoot": "/run/nvidia/driver"}}, {}, {"nvidiaDriverRoot": "/run/nvidia/driver"}, ""),
        ({}, {"NVIDIA_DRIVER_ROOT": "/opt/nvidia"}, {"nvidiaDriverRoot": "/opt/nvidia"}, ""),
        ({}, {"DP_DISABLE_HEALTHCHECKS": "all"}, {"policy": {"gpus": [{"health": False}]}}, ""),
        ({}, {"DP_DISABLE_HEALTHCHECKS": "137,13"}, {"policy": {"health": {"applicationXIDs": [13, 137]}}}, ""),
        (
            {"flags": {"gdrcopyEnabled": True, "gdsEnabled": True}},
            {"MOFED_ENABLED": "true"},
            {"policy": {"gpus": [{"additionalDevices": ["gds", "gdrcopy", "mofed"]}]}},
            "",
        ),
        ({"imex": {"channelIDs": [0], "required": True}}, {}, {}, "create a ComputeDomain"),
        ({"resources": {"gpus": [{"pattern": "*T4*", "name": "t4"}]}}, {}, {}, ""),
        (
            {
                "sharing": {
                    "timeSlicing": {"resources": [{"name": "gpu", "rename": "half", "devices": [0], "replicas": 2}]}
                }
            },
            {},
            {"policy": {"gpus": [{"shares": 2}]}},
            "",
        ),
    ],
)
def test_other_settings_become_values_or_notes(
    migrate: Migrate, sections: JSON, variables: dict[str, str], values: JSON, note: str
) -> None:
    found = migrate(
        plugin(configs="c", **variables), config_map("c", config={"version": "v1", **sections}), node("n", T4, 1)
    )
    assert found["values"] == {**values, "deviceClasses": GPUS}
    assert (note in "".join(found["planNotes"])) if note else not found["planNotes"]


def test_a_driver_that_serves_compute_domains_already_is_named(migrate: Migrate) -> None:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    channels = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "channels"},
        "spec": {"driver": "compute-domain.nvidia.com", "nodeName": "n", "pool": pool, "devices": []},
    }
    (note,) = migrate(plugin(), node("n", T4, 1), channels)["planNotes"]
    assert note.startswith("driver compute-domain.nvidia.com serves ComputeDomains on n. If this is NVIDIA's")


def test_taints_of_the_nodes_are_tolerated(migrate: Migrate) -> None:
    taints = [
        {"key": "dedicated", "value": "x", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
    ]
    found = migrate(plugin(), node("n", T4, 1, taints=taints))
    assert [one["key"] for one in found["values"]["kubeletPlugin"]["tolerations"]] == ["nvidia.com/gpu", "dedicated"]


def test_a_cordoned_node_still_has_the_plugin(migrate: Migrate) -> None:
    daemon_set = plugin()
    daemon_set["spec"]["template"]["spec"]["tolerations"] = []
    taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    found = migrate(daemon_set, node("n", T4, 1, taints=taints))
    assert found["values"] == {"deviceClasses": GPUS}


def test_a_node_without_the_plugin_is_left_alone(migrate: Migrate) -> None:
    daemon_set = plugin()
    daemon_set["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "gpu"}
    found = migrate(daemon_set, node("a", T4, 1, labels={"pool": "gpu"}), node("b", T4, 1), node("cpu"))
    assert [one["name"] for one in found["nodes"]] == ["a"]


@pytest.mark.parametrize("minor", [33, 34, 36])
def test_the_chart_accepts_the_values_and_makes_the_classes_that_were_verified(migrate: Migrate, minor: int) -> None:
    """Helm's own engine renders them."""
    found = migrate(
        plugin(configs="c", NVIDIA_DRIVER_ROOT="/opt"),
        config_map("c", config=config("mixed", sharing=sharing({"nvidia.com/mig-2g.10gb": 2}, renameByDefault=True))),
        mig_parted(custom=[([0], {"1g.5gb+me": 1}), ([1], {"2g.10gb": 3}), ([2], None)]),
        node("n", A100, 3, labels={"nvidia.com/mig.config": "custom"}, taints=[{"key": "k", "effect": "NoExecute"}]),
        options=("--kubernetes-version", f"1.{minor}"),
    )
    objects = render(found["values"], minor)
    classes = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "DeviceClass"}
    assert {"gpu.nvidia.com", "mig-1g.5gb.me.nvidia.com"} <= classes.keys()
    names = {spec.get("extendedResourceName") for spec in classes.values()} - {None}
    assert names == ({"nvidia.com/gpu", "nvidia.com/mig-1g.5gb.me"} if minor > 33 else set())
    (own,) = found["deviceClasses"]
    assert own["apiVersion"] == ("resource.k8s.io/v1" if minor > 33 else "resource.k8s.io/v1beta2")
    assert own["metadata"]["name"] not in classes
    assert ("extendedResourceName" in own["spec"]) == (minor > 33)


ERRORS = {
    "broken YAML": (config_map("c") | {"data": {"x": "version: v1\nsharing: ["}}, "data.x: 3:1: is not YAML"),
    "version": (config() | {"version": "v2"}, "data.01.version: 'v2' is unknown"),
    "section": (config() | {"shaaring": {}}, "data.01.shaaring: unknown field; did you mean 'sharing'?"),
    "flag": (
        config() | {"flags": {"migStrateg": "none"}},
        "flags.migStrateg: unknown field; did you mean 'migStrategy'?",
    ),
    "nested flag": (config() | {"flags": {"plugin": {"x": 1}}}, "flags.plugin.x: unknown field"),
    "strategy": (config("both"), "flags.migStrategy: must be none, single, mixed, not 'both'"),
    "replicas": (config(sharing=sharing({"gpu": 1})), "resources[0].replicas: must be 2 or more, not 1"),
    "no resources": (config(sharing=sharing({})), "sharing.timeSlicing.resources: is required"),
    "both": (
        config(sharing={**sharing({"gpu": 2}), **sharing({"gpu": 2}, "mps")}),
        "sharing: time-slicing and MPS exclude each other",
    ),
    "MPS and MIG": (config("mixed", sharing=sharing({"gpu": 2}, "mps")), "the device plugin refuses mixed"),
    "mig-parted": (
        {"version": "v1", "mig-configs": {"a": [{"devices": "some"}]}},
        "a[0].devices: must be all or a list",
    ),
    "no ConfigMap": (plugin(configs="missing"), "its ConfigMap nvidia-device-plugin/missing is not among"),
    "a pod's field": (pod(nodeSelektor={}), "spec.nodeSelektor: unknown field; did you mean 'nodeSelector'?"),
    "a pod's form": (pod() | {"spec": {"containers": "cuda"}}, "spec.containers: must be a list, not a string"),
    "a workload's form": (
        deployment(1, tolerations={"key": "x"}),
        "spec.template.spec.tolerations: must be a list, not an object",
    ),
    "a node's name": (node("m") | {"metadata": {}}, "metadata.name: is required"),
    "a node's form": (node("m", T4, 1) | {"spec": {"taints": [1]}}, "spec.taints[0]: must be an object"),
    "a pod's amount": (pod(count="some"), "containers[0].resources.limits[nvidia.com/gpu]: 'some' is not a quantity"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("value", "expected"), ERRORS.values(), ids=ERRORS)
def test_mistakes_are_told_with_their_place(dryrun: DryRun, tmp_path: Path, value: JSON, expected: str) -> None:
    (tmp_path / "00.json").write_text(json.dumps(node("n", T4, 1)), encoding="utf-8")
    (tmp_path / "01.json").write_text(json.dumps(value), encoding="utf-8")
    code, _, err = dryrun("migrate", tmp_path, "--verify")
    assert code == 2, err
    assert expected in err, err
    assert "01.json" in err, err


def test_nodes_with_gpus_are_needed(dryrun: DryRun, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(config()), encoding="utf-8")
    code, _, err = dryrun("migrate", tmp_path / "config.yaml")
    assert code == 2
    assert "config.yaml: no Node with GPUs" in err
    code, _, err = dryrun("migrate")
    assert code == 2
    assert "no cluster is configured: name FILEs" in err
