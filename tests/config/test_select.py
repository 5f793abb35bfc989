# SPDX-License-Identifier: Apache-2.0
"""Which of several configurations an allocated device gets."""

from collections.abc import Sequence

import pytest

from dra_driver.config import (
    API_VERSION,
    Chosen,
    ConfigError,
    GpuConfig,
    IommuBackend,
    MigDeviceConfig,
    TimeSlice,
    VfioDeviceConfig,
    config_for,
    require_one_backend,
)
from dra_driver.kube.resource import (
    AllocatedConfiguration,
    AllocatedDevice,
    AllocationResult,
    ClaimConfiguration,
    DeviceClaim,
    ObjectMeta,
    OpaqueConfiguration,
    ResourceClaim,
)
from dra_driver.names import AdditionalDevice

DRIVER = "gpu.nvidia.com"


def sliced(
    interval: str, *requests: str, source: str = "FromClaim", driver: str = DRIVER, kind: str = "GpuConfig"
) -> AllocatedConfiguration:
    """A configuration told from others by its interval."""
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    parameters = {"apiVersion": API_VERSION, "kind": kind, "sharing": sharing}
    return AllocatedConfiguration(source, requests, OpaqueConfiguration(driver, parameters))


def plain(kind: str, *requests: str) -> AllocatedConfiguration:
    """A configuration of a kind with nothing in it."""
    return AllocatedConfiguration(
        "FromClaim", requests, OpaqueConfiguration(DRIVER, {"apiVersion": API_VERSION, "kind": kind})
    )


def device(request: str = "gpu") -> AllocatedDevice:
    """A device that was allocated for this request."""
    return AllocatedDevice(request, DRIVER, "node-a", "gpu-0")


def claim(configs: Sequence[AllocatedConfiguration]) -> ResourceClaim:
    """A claim with these in its allocation; those that are its own are in its spec too, below one for nobody."""
    own = [ClaimConfiguration(one.requests, one.opaque) for one in configs if one.source == "FromClaim"]
    nobody = ClaimConfiguration(("nobody",), OpaqueConfiguration(DRIVER, {}))
    allocation = AllocationResult((device(),), tuple(configs))
    return ResourceClaim(ObjectMeta("claim", "team"), DeviceClaim(config=(nobody, *own)), allocation)


BROKEN = plain("Nonsense")

# what is decided, the request, the configurations as listed in the allocation, the interval of the one that wins
PRECEDENCE: list[tuple[str, str, list[AllocatedConfiguration], str | None]] = [
    ("nothing configured is the default", "gpu", [], None),
    ("the only one applies", "gpu", [sliced("Long")], "Long"),
    ("the later wins", "gpu", [sliced("Long"), sliced("Short")], "Short"),
    ("the claim's wins over the class's", "gpu", [sliced("Long", source="FromClass"), sliced("Short")], "Short"),
    ("the claim's wins wherever it stands", "gpu", [sliced("Short"), sliced("Long", source="FromClass")], "Short"),
    (
        "the order within a source stays",
        "gpu",
        [sliced("Long"), sliced("Medium", source="FromClass"), sliced("Short")],
        "Short",
    ),
    ("the class's applies alone", "gpu", [sliced("Long", "gpu", source="FromClass")], "Long"),
    ("other requests' are passed over", "gpu", [sliced("Long", "gpu"), sliced("Short", "nic")], "Long"),
    ("only other requests' is the default", "gpu", [sliced("Short", "nic")], None),
    ("one of several requests", "gpu", [sliced("Long", "nic", "gpu")], "Long"),
    ("named and general: the later wins", "gpu", [sliced("Long", "gpu"), sliced("Short")], "Short"),
    ("general and named: the later wins", "gpu", [sliced("Long"), sliced("Short", "gpu")], "Short"),
    ("an alternative by its full name", "gpu/big", [sliced("Long", "gpu/big")], "Long"),
    ("an alternative by its request's name", "gpu/big", [sliced("Long", "gpu")], "Long"),
    ("another alternative's is passed over", "gpu/big", [sliced("Long", "gpu/small")], None),
    ("a request is not its alternatives", "gpu", [sliced("Long", "gpu/big")], None),
    ("names are compared whole", "gpu", [sliced("Long", "gpu2"), sliced("Short", "gp")], None),
    ("other drivers' are passed over", "gpu", [sliced("Long"), sliced("Short", driver="nic.example.com")], "Long"),
    ("general ones of another kind are passed over", "gpu", [sliced("Long"), plain("MigDeviceConfig")], "Long"),
    ("a broken one that is overridden does no harm", "gpu", [BROKEN, sliced("Long")], "Long"),
    ("one without sharing overrides, too", "gpu", [sliced("Long"), plain("GpuConfig")], None),
]


@pytest.mark.parametrize("source", ["FromClass", "FromClaim"])
def test_only_a_class_may_ask_for_hardware_that_no_claim_has(source: str) -> None:
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig", "additionalDevices": ["nvswitch"]}
    wanted = claim([AllocatedConfiguration(source, (), OpaqueConfiguration(DRIVER, parameters))])
    if source == "FromClass":
        assert config_for(device(), GpuConfig, wanted).config == GpuConfig(None, (AdditionalDevice.NVSWITCH,))
    else:
        with pytest.raises(ConfigError, match=r"additionalDevices\[0\]: nvswitch gives access"):
            config_for(device(), GpuConfig, wanted)


@pytest.mark.parametrize(
    ("request_name", "configs", "interval"), [row[1:] for row in PRECEDENCE], ids=[row[0] for row in PRECEDENCE]
)
def test_precedence(request_name: str, configs: list[AllocatedConfiguration], interval: str | None) -> None:
    found = config_for(device(request_name), GpuConfig, claim(configs)).config
    assert isinstance(found, GpuConfig)
    assert (found.sharing and found.sharing.interval) == (interval and TimeSlice(interval))


def test_a_mig_device_takes_its_own_kind() -> None:
    configs = claim([plain("MigDeviceConfig"), plain("GpuConfig")])
    assert config_for(device(), MigDeviceConfig, configs) == Chosen(
        MigDeviceConfig(), "spec.devices.config[1].opaque.parameters"
    )
    assert config_for(device(), GpuConfig, configs) == Chosen(GpuConfig(), "spec.devices.config[2].opaque.parameters")


def test_a_vfio_device_takes_its_own_kind_and_others_pass_it_over() -> None:
    configs = claim([plain("VfioDeviceConfig"), plain("GpuConfig")])
    place = "spec.devices.config[{}].opaque.parameters".format
    assert config_for(device(), VfioDeviceConfig, configs) == Chosen(VfioDeviceConfig(), place(1))
    assert config_for(device(), GpuConfig, configs) == Chosen(GpuConfig(), place(2))
    assert config_for(device(), MigDeviceConfig, configs) == Chosen(MigDeviceConfig())


def test_a_gpu_configuration_that_names_the_request_of_a_vfio_device_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"devices that take a GpuConfig: use a VfioDeviceConfig, or another class$"):
        config_for(device(), VfioDeviceConfig, claim([plain("GpuConfig", "gpu")]))


def test_the_vfio_devices_of_a_claim_have_one_backend() -> None:
    legacy, iommufd = VfioDeviceConfig(), VfioDeviceConfig(IommuBackend.PREFER_IOMMUFD)
    require_one_backend([])
    require_one_backend([Chosen(legacy, "a"), Chosen(GpuConfig(), "b"), Chosen(legacy)])
    with pytest.raises(ConfigError, match=r"^b: .* configured differently, by a and b: all of them must have the same"):
        require_one_backend([Chosen(legacy, "a"), Chosen(GpuConfig(), "c"), Chosen(iommufd, "b")])
    with pytest.raises(ConfigError, match=r"^a: .* by a and the default: "):
        require_one_backend([Chosen(iommufd, "a"), Chosen(legacy)])


def test_the_place_is_in_the_spec_for_the_claims_own_and_in_the_allocation_for_a_classs() -> None:
    found = [
        config_for(device(), GpuConfig, claim(configs)).place
        for configs in ([], [sliced("Long", source="FromClass")], [sliced("Long", source="FromClass"), sliced("Short")])
    ]
    allocated = "status.allocation.devices.config[0].opaque.parameters"
    assert found == ["", allocated, "spec.devices.config[1].opaque.parameters"]


def test_an_entry_that_the_scheduler_copied_twice_is_one_place() -> None:
    configs = claim([sliced("Long", "gpu")] * 2)
    assert config_for(device(), GpuConfig, configs).place == "spec.devices.config[1].opaque.parameters"


def test_a_configuration_of_the_wrong_kind_for_a_named_request_is_an_error() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^spec\.devices\.config\[2\]\.opaque\.parameters\.kind: request 'gpu' is not given devices that take a"
        r" MigDeviceConfig: use a GpuConfig, or another class$",
    ):
        config_for(device(), GpuConfig, claim([sliced("Long"), plain("MigDeviceConfig", "gpu")]))


@pytest.mark.parametrize("requests", [(), ("gpu",)])
def test_a_broken_one_that_applies_is_an_error(requests: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="kind: 'Nonsense' is not supported"):
        config_for(device(), GpuConfig, claim([sliced("Long"), plain("Nonsense", *requests)]))


@pytest.mark.parametrize("driver", [DRIVER, "nic.example.com"])
@pytest.mark.parametrize("source", ["", "FromPool"])
def test_a_source_that_is_not_known_is_an_error_whosever_it_is(source: str, driver: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^status\.allocation\.devices\.config\[0\]\.source: .* does not know source '{source}'"
    ):
        config_for(device(), GpuConfig, claim([sliced("Long", source=source, driver=driver), sliced("Short")]))
