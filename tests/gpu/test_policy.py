# SPDX-License-Identifier: Apache-2.0
"""What an administrator wants of each GPU, and the file that says it."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.inventory import Gpu, PciGpu
from dra_driver.gpu.policy import (
    Enforcement,
    GpuPolicy,
    HealthPolicy,
    MigPolicy,
    NodePolicy,
    PassthroughMode,
    PolicyError,
    PolicyFile,
    ShareMode,
    load_policy,
)
from dra_driver.gpu.simulated.board import boards
from dra_driver.kube.api.features import OPTIONAL
from dra_driver.kube.resource import TaintEffect
from dra_driver.names import AdditionalDevice
from tests.support.hostile import HOSTILE
from tests.support.logs import records_of
from tests.support.nodes import board_gpu, on_bus

GPU = board_gpu(boards()["H100-SXM5-80GB"], 2)
PCI = on_bus(GPU)

EVERYTHING = """
gpus:
- match:
    models: ["NVIDIA H100*"]
    indexes: [0, 2]
    uuids: [GPU-00000002-8888-4444-2222-123456789abc]
    pciBusIDs: ["00000000:12:00.0"]
    nodes: ["gpu-a*"]
  publish: true
  mig: dynamic
  passthrough: true
  health: false
  shares: {mode: 4, enforce: auto}
  bindingConditions: true
  additionalDevices: [gds, mofed]
health:
  applicationXIDs: [137, 143]
  effect: NoExecute
  withdrawAfterSeconds: 60
  clearAfterSeconds: 3600
  quietAfterSeconds: 30.5
listTypeAttributes: true
"""


def read(path: Path, text: str) -> NodePolicy:
    """The policy that a file with this text says, on node gpu-a1."""
    path.write_text(text)
    return load_policy(path).on_node("gpu-a1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "policy.yaml"


def test_a_file_may_say_everything(path: Path) -> None:
    policy = read(path, EVERYTHING)
    assert policy.for_gpu(GPU, PCI) == GpuPolicy(
        True, MigPolicy.DYNAMIC, True, False, 4, Enforcement.AUTO, True, (AdditionalDevice.GDS, AdditionalDevice.MOFED)
    )
    assert policy.health == HealthPolicy(frozenset({137, 143}), TaintEffect.NO_EXECUTE, 60.0, 3600.0, 30.5)
    assert policy.list_type_attributes


@pytest.mark.parametrize("text", ["", "gpus: []", "gpus:\nhealth: {}", "# nothing"])
def test_a_file_may_say_nothing(path: Path, text: str) -> None:
    assert read(path, text) == NodePolicy()
    assert NodePolicy().for_gpu(GPU) == GpuPolicy()


def test_the_key_of_the_chart_in_a_file_is_an_error_with_the_remedy(path: Path) -> None:
    with pytest.raises(PolicyError, match=r"policy: is the name of the chart's value.*: leave out `policy:`"):
        read(path, "policy:\n  gpus: [{shares: memory}]\n")


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("{}", True),
        ("{models: ['NVIDIA H100*']}", True),
        ("{models: ['nvidia-h100-80gb-hbm3']}", True),
        ("{models: ['*A100*', '*H100*']}", True),
        ("{models: ['H100*']}", False),
        ("{indexes: [2]}", True),
        ("{indexes: [0, 1]}", False),
        ("{uuids: [GPU-00000002-8888-4444-2222-123456789abc]}", True),
        ("{uuids: [GPU-1]}", False),
        ("{pciBusIDs: ['0000:12:00.0']}", True),
        ("{pciBusIDs: ['00000000:12:00.0']}", True),
        ("{pciBusIDs: ['0000:13:00.0']}", False),
        ("{nodes: [gpu-a1]}", True),
        ("{nodes: ['gpu-?1']}", True),
        ("{nodes: [gpu-b1]}", False),
        ("{models: ['NVIDIA H100*'], indexes: [0]}", False),
    ],
)
def test_a_rule_applies_when_all_that_is_given_matches(path: Path, match: str, matches: bool) -> None:
    policy = read(path, f"gpus: [{{match: {match}, publish: false}}]")
    assert policy.for_gpu(GPU, PCI).publish is not matches


def test_addresses_are_compared_whatever_their_case_and_width(path: Path) -> None:
    policy = read(path, "gpus: [{match: {pciBusIDs: ['0001:AB:1f.0']}, publish: false}]")
    assert not policy.for_gpu(replace(GPU, pci_address="0001:ab:1f.0")).publish


@pytest.mark.parametrize(
    ("gpu", "pci", "matches"),
    [
        (GPU, None, True),
        (None, PCI, True),
        (None, replace(PCI, product_name="GA100 [A100 SXM4 40GB]"), False),
        (None, replace(PCI, product_name=None), False),
        (replace(GPU, product_name=None), None, False),
        (replace(GPU, product_name=None), PCI, True),
    ],
    ids=["NVML", "bus", "another one on the bus", "unknown on the bus", "unknown to NVML", "known on the bus"],
)
def test_a_model_matches_whichever_driver_has_the_gpu(
    path: Path, gpu: Gpu | None, pci: PciGpu | None, matches: bool
) -> None:
    policy = read(path, "gpus: [{match: {models: ['NVIDIA H100*']}, passthrough: true}]")
    assert policy.for_gpu(gpu, pci).passthrough is matches


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False), ("only", PassthroughMode.ONLY), ("null", PassthroughMode.ONLY)],
)
def test_a_gpu_may_be_for_virtual_machines_only(path: Path, text: str, value: object) -> None:
    policy = read(path, f"gpus: [{{passthrough: only}}, {{passthrough: {text}}}]")
    assert policy.for_gpu(GPU, PCI).passthrough is value
    with pytest.raises(PolicyError, match=r"gpus\[0\].passthrough: must be true, false or only, not 'never'"):
        read(path, "gpus: [{passthrough: never}]")


def test_a_later_rule_overrides_what_it_names_and_nothing_else(path: Path) -> None:
    policy = read(
        path,
        """
        gpus:
        - {mig: dynamic, shares: unlimited, health: false}
        - {match: {indexes: [2]}, mig: static, health: true}
        - {match: {indexes: [3]}, publish: false}
        - {match: {indexes: [2]}, shares: memory}
        """,
    )
    assert policy.for_gpu(GPU) == GpuPolicy(mig=MigPolicy.STATIC, shares=ShareMode.MEMORY, health=True)
    other = replace(GPU, index=0)
    assert policy.for_gpu(other) == GpuPolicy(mig=MigPolicy.DYNAMIC, shares=ShareMode.UNLIMITED, health=False)


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("", set()),
        ("listTypeAttributes: true", {"list_attributes"}),
        ("gpus: [{bindingConditions: false}]", set()),
        ("gpus: [{match: {indexes: [9]}, bindingConditions: true}]", {"binding_conditions"}),
        ("gpus: [{match: {nodes: [gpu-b1]}, bindingConditions: true}]", set()),
        ("gpus: [{match: {nodes: [gpu-a1]}, bindingConditions: true}]", {"binding_conditions"}),
    ],
)
def test_a_policy_names_the_features_that_not_every_policy_needs(path: Path, text: str, features: set[str]) -> None:
    policy = read(path, text)
    assert policy.optional_features == features
    assert policy.binding_conditions == ("binding_conditions" in features)
    assert features <= OPTIONAL


def test_rules_for_certain_nodes_wait_for_the_node(path: Path) -> None:
    path.write_text("gpus: [{match: {nodes: ['gpu-*']}, publish: false}]")
    policy = load_policy(path)
    assert policy.for_gpu(GPU).publish
    assert not policy.on_node("gpu-1").for_gpu(GPU).publish
    assert policy.on_node("cpu-1").for_gpu(GPU).publish


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpu: []", "gpu: unknown field; did you mean 'gpus'?"),
        ("gpus: {}", "gpus: must be a list, not an object"),
        ("- 1", "must be an object, not a list"),
        ("gpus: [{match: {model: x}}]", "gpus[0].match.model: unknown field; did you mean 'models'?"),
        ("gpus: [{match: {models: x}}]", "gpus[0].match.models: must be a list, not a string"),
        ("gpus: [{match: {indexes: [-1]}}]", "gpus[0].match.indexes[0]: must be a whole number from 0 on, not -1"),
        ("gpus: [{match: {indexes: [true]}}]", "gpus[0].match.indexes[0]: must be a whole number from 0 on, not True"),
        (
            "gpus: [{match: {pciBusIDs: ['3b:00.0']}}]",
            "gpus[0].match.pciBusIDs[0]: '3b:00.0' is not a PCI address such as 0000:3b:00.0",
        ),
        ("gpus: [{mig: on}]", "gpus[0].mig: must be a string, not a boolean"),
        ("gpus: [{mig: always}]", "gpus[0].mig: must be auto or static or dynamic, not 'always'"),
        ("gpus: [{publish: 'no'}]", "gpus[0].publish: must be true or false, not a string"),
        ("gpus: [{shares: 0}]", "gpus[0].shares: must be disabled, unlimited, memory or a number of claims"),
        ("gpus: [{shares: {enforce: mps}}]", "gpus[0].shares.mode: must be disabled, unlimited, memory or a number"),
        (
            "gpus: [{shares: {mode: 4, enforce: hard}}]",
            "gpus[0].shares.enforce: must be none or mps or memory-limits or auto, not 'hard'",
        ),
        (
            "gpus: [{shares: {mode: unlimited, enforce: mps}}]",
            "gpus[0].shares.enforce: mps needs mode memory or a number: with mode unlimited, a claim need not request"
            " memory, so it would have no limit",
        ),
        ("gpus: [{shares: {mode: 4, limit: 1}}]", "gpus[0].shares.limit: unknown field"),
        ("gpus: [{shares: many}]", "gpus[0].shares: must be disabled, unlimited, memory or a number of claims"),
        ("health: {effect: Evict}", "health.effect: must be None or NoSchedule or NoExecute, not 'Evict'"),
        ("health: {applicationXIDs: [x]}", "health.applicationXIDs[0]: must be a whole number from 1 on, not 'x'"),
        (
            "gpus: [{shares: 99999999999999999999}]",
            "gpus[0].shares: must be disabled, unlimited, memory or a number of",
        ),
        (
            "gpus: [{match: {indexes: [9999999999999999999]}}]",
            "gpus[0].match.indexes[0]: must be a whole number from 0",
        ),
        ("health: {clearAfterSeconds: -1}", "health.clearAfterSeconds: must be a number of seconds from 0 to 31622400"),
        (f"health: {{withdrawAfterSeconds: {'9' * 99}}}", "health.withdrawAfterSeconds: must be a number of seconds"),
        ("listTypeAttributes: 1", "listTypeAttributes: must be true or false, not a number"),
    ],
)
def test_a_wrong_file_is_refused_with_file_field_and_remedy(path: Path, text: str, problem: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(path, text)
    assert str(caught.value).startswith(f"policy file {path}: {problem}")


def test_a_file_that_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(PolicyError, match=f"policy file {path} cannot be read: No such file"):
        load_policy(path)


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_text_that_is_no_policy_leaves_the_last_good_one_in_force(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("gpus: [{publish: false}]")
    file = PolicyFile(path, "node-a")
    before = file.current()
    path.write_bytes(content)
    assert file.current() == before
    assert file.problem is not None
    assert file.problem.startswith(f"policy file {path}:")
    assert [record.getMessage() for record in caplog.records] == [
        f"{file.problem}; the last valid policy stays in effect"
    ]
    assert "\n" not in file.problem


def test_a_changed_file_is_read_anew(path: Path) -> None:
    path.write_text("gpus: [{publish: false}]")
    file = PolicyFile(path, "node-a")
    before = file.current()
    assert file.current() is before
    path.write_text("gpus: [{publish: true, mig: dynamic}]")
    assert file.current().for_gpu(GPU).mig is MigPolicy.DYNAMIC


def test_a_config_map_is_swapped_behind_links(tmp_path: Path) -> None:
    for number, publish in enumerate(("false", "true ")):  # of equal size
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}/policy.yaml").write_text(f"gpus: [{{publish: {publish}}}]")
    data, link = tmp_path / "..data", tmp_path / "policy.yaml"
    data.symlink_to("..0")
    link.symlink_to("..data/policy.yaml")
    file = PolicyFile(link, "node-a")
    assert not file.current().for_gpu(GPU).publish
    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").rename(data)
    assert file.current().for_gpu(GPU).publish


@pytest.mark.parametrize("broken", ["gpus: 1", None], ids=["wrong", "gone"])
def test_the_last_good_policy_stays_and_the_error_is_said_once(
    path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("gpus: [{publish: false}]")
    file = PolicyFile(path, "node-a")
    good = file.current()
    assert file.problem is None
    if broken is None:
        path.unlink()
    else:
        path.write_text(broken)
    with caplog.at_level(logging.INFO):
        assert [file.current() for _ in range(3)] == [good] * 3
        (record,) = records_of(caplog, "dra_driver.gpu.policy")
        assert record.levelname == "ERROR"
        assert file.problem is not None
        assert file.problem in caplog.text
        path.write_text("gpus: [{publish: true}]")
        assert file.current().for_gpu(GPU).publish
        assert file.problem is None
        assert caplog.records[-1].message == "the policy changed"


def test_a_file_that_was_never_good_is_an_error_until_it_is(path: Path) -> None:
    file = PolicyFile(path, "node-a")
    for _ in range(2):
        with pytest.raises(PolicyError, match="cannot be read"):
            file.current()
    path.write_text("gpus: 1")
    with pytest.raises(PolicyError, match="gpus: must be a list"):
        file.current()
    path.write_text("gpus: []")
    assert file.current() == NodePolicy()
