# SPDX-License-Identifier: Apache-2.0
"""Mutated configurations: accepted or refused with a path, and the same by webhook, lint, prepare and dry run."""

import copy
import functools
import random
from typing import Any, Final

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.webhook.review import problems, warnings
from dra_driver.config import API_VERSION, DEVICE_TYPES, config_for, ineffective
from dra_driver.dryrun.documents import Document
from dra_driver.dryrun.lint.catalog import Catalog, KnownObjects
from dra_driver.dryrun.lint.configs import check_claim
from dra_driver.dryrun.lint.finding import LintRule
from dra_driver.dryrun.lint.subject import LintContext, subject_of
from dra_driver.dryrun.positions import Positions
from dra_driver.dryrun.preparation import refused_configs
from dra_driver.gpu.devices import device_targets
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.simulated.board import boards
from dra_driver.kube.resource import Device, ObjectMeta, ResourceClaim, ResourcePool, ResourceSlice
from dra_driver.kube.resource.codec import V1, decode_claim
from dra_driver.scheduler.allocator import Cluster
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.errors import PrepareError
from kubeletplugin.node.gpus import Found
from tests.support.nodes import board_inventory
from tests.support.plans import make_plan

JSON = dict[str, Any]

CONFIGURATIONS: Final = 1_500
BATCH: Final = 50

PLACE: Final = "spec.devices.config[0].opaque.parameters"
REF: Final = ClaimRef("team", "claim", "uid")
FOR_NO_DEVICE: Final = "it is for no device that this configuration applies to"
TYPES: Final = {kind.__name__: forms[0] for kind, forms in DEVICE_TYPES.items()}
KINDS: Final = {forms[0]: kind for kind, forms in DEVICE_TYPES.items()}
NOWHERE: Final = Positions(yaml.MappingNode("", []), ())
CONTEXT: Final = LintContext("1.36", Catalog(KnownObjects(()), (), "1.36", "here", models=True))

VALID: Final[tuple[JSON, ...]] = (
    {"kind": "GpuConfig"},
    {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}},
    {"kind": "MigDeviceConfig", "sharing": {"strategy": "TimeSlicing"}, "additionalDevices": ["gds", "gdrcopy"]},
    {
        "kind": "GpuConfig",
        "sharing": {
            "strategy": "MPS",
            "mpsConfig": {
                "defaultActiveThreadPercentage": 50,
                "defaultPinnedDeviceMemoryLimit": "10Gi",
                "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi", "GPU-1": "1500Ki"},
                "multiUser": True,
            },
        },
    },
    {"kind": "MigDeviceConfig", "sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Gi"}}},
    {"kind": "VfioDeviceConfig"},
    {"kind": "VfioDeviceConfig", "iommu": {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}},
)
KEYS: Final = (
    *("apiVersion", "kind", "sharing", "strategy", "timeSlicingConfig", "interval", "mpsConfig", "multiUser", "shared"),
    *("defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit", "defaultPerDevicePinnedMemoryLimit", "", "."),
    *("0", "-1", "GPU-1", "MIG-1", "a.b", "a[0]", "x]", "é", "TimeSlicingConfig", "iommu"),
    *("backendPolicy", "enableAPIDevice", "additionalDevices"),
)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, 100, 101, -1, 1 << 70, 0.5, float("inf"), "", "x", "MPS", "TimeSlicing", "Default"),
    *("Short", "Medium", "Long", "10Gi", "1000k", "1Mi", "1e30", "1e99999", "-5Gi", "Gi", "٣", "GpuConfig", [], [{}]),
    *(
        "MigDeviceConfig",
        "VfioDeviceConfig",
        API_VERSION,
        "50",
        "LegacyOnly",
        ["gds"],
        ["mofed"],
        {},
        {"0": "1Gi"},
        {"interval": ""},
        {"strategy": "MPS"},
    ),
)


@functools.cache
def mig_board() -> Inventory:
    """A node with one GPU in MIG mode."""
    return board_inventory(boards()["H100-SXM5-80GB"], 1, mig=True)


@functools.cache
def found(kind: str) -> Found:
    """What a device of this type stands for."""
    devices = device_targets(mig_board() if kind == "mig" else board_inventory(boards()["H100-SXM5-80GB"], 1))
    return devices[{"mig": "gpu-0-mig-1g10gb-19-0", "vfio": "gpu-vfio-0"}.get(kind, "gpu-0")]


@settings(max_examples=CONFIGURATIONS // BATCH)
@given(st.integers(0, 1 << 64))
def test_mutated_configurations(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(BATCH):
        parameters = {"apiVersion": API_VERSION, **copy.deepcopy(source.choice(VALID))}
        for _ in range(source.choice((0, 1, 1, 2, 3))):
            mutate(parameters, source)
        agree(parameters)


def mutate(value: JSON, source: random.Random) -> None:
    """Change, add, rename or remove a field somewhere."""
    objects = [value]
    for one in objects:
        objects += [inner for inner in one.values() if isinstance(inner, dict)]
    inner = source.choice(objects)
    key = source.choice([*inner, *source.sample(KEYS, 2)])
    match source.randrange(4):
        case 0:
            inner.pop(key, None)
        case 1:
            inner[source.choice(KEYS)] = inner.pop(key, None)
        case _:
            inner[key] = copy.deepcopy(source.choice(VALUES))


def agree(parameters: JSON) -> None:
    """All four say the same of a claim with this configuration, except that the node alone knows the devices' UUIDs."""
    kind = TYPES.get(str(parameters.get("kind")), "gpu")
    value = claim_value(parameters)
    claim = decode_claim(value, V1)
    refused = problems("ResourceClaim", "CREATE", value, {})
    spec = subject_of(Document(value, "claims.yaml")).claim
    linted = list(check_claim(spec, CONTEXT)) if spec is not None else []
    invalid = [f"{one.path}: {one.message}" for one in linted if one.rule is LintRule.INVALID_CONFIG]
    assert refused == invalid[:1]
    if refused:
        assert refused[0].startswith(PLACE)
        assert said_by_prepare(claim, found(kind)) == refused[0]
        assert said_by_dry_run(claim, kind) == refused
        return
    config = config_for(claim.allocation.results[0], KINDS[kind], claim).config  # type: ignore[union-attr]
    told = [str(one)] if (one := ineffective(config, PLACE)) is not None else []
    assert warnings("ResourceClaim", "CREATE", value, {}) == told
    assert [f"{one.path}: {one.message}" for one in linted if one.rule is LintRule.CONFIG_WITHOUT_EFFECT] == told
    assert said_by_dry_run(claim, kind) == []
    said = said_by_prepare(claim, found(kind))
    assert not said or (said.startswith(PLACE) and FOR_NO_DEVICE in said)


def test_devices_of_a_machine_that_are_configured_differently() -> None:
    value = claim_value({"apiVersion": API_VERSION, "kind": "VfioDeviceConfig", "iommu": {"enableAPIDevice": True}})
    allocated = value["status"]["allocation"]["devices"]
    allocated["results"].append({**allocated["results"][0], "request": "other"})
    for config in (value["spec"]["devices"]["config"][0], allocated["config"][0]):
        config["requests"] = ["gpu"]
    claim = decode_claim(value, V1)
    refused = said_by_prepare(claim, found("vfio"))
    assert refused.startswith(f"{PLACE}: the claim's devices for virtual machines are configured differently")
    assert said_by_dry_run(claim, "vfio") == [refused]


def claim_value(parameters: JSON) -> JSON:
    """A claim with this configuration, allocated one device."""
    config = {"requests": [], "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node", "device": "device"}
    allocation = {"devices": {"results": [result], "config": [{"source": "FromClaim", **config}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim", "namespace": "team", "uid": "uid"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "c"}}], "config": [config]}},
        "status": {"allocation": allocation},
    }


def said_by_prepare(claim: ResourceClaim, device: Found) -> str:
    """What kubelet hears when the claim is prepared; nothing when all is well."""
    try:
        make_plan(REF, claim, "node", lambda _: device, gpu_with=mig_board().gpu)
    except PrepareError as error:
        return str(error)
    return ""


def said_by_dry_run(claim: ResourceClaim, kind: str) -> list[str]:
    """What the dry run notes of the claim, without its name."""
    pool = ResourcePool("node", 1, 1)
    devices = (Device("device", attributes={"type": kind}),)
    cluster = Cluster.of([ResourceSlice(ObjectMeta("slice"), "gpu.nvidia.com", pool, "node", devices=devices)])
    beginning = "claim team/claim: the driver refuses it on the node: "
    notes = refused_configs([claim], cluster)
    assert all(note.startswith(beginning) for note in notes)
    return [note.removeprefix(beginning) for note in notes]
