# SPDX-License-Identifier: Apache-2.0
"""The messages, byte by byte, against encodings made by hand from the published field numbers."""

import pytest
from google.protobuf import descriptor_pool

from dra_driver.sandbox.kubelet import ClaimRef, Health, wire
from dra_driver.sandbox.kubelet.wire import ClaimAnswer, PreparedDevice


def field(number: int, value: bytes | str | int | bool) -> bytes:
    """One protobuf field: a varint (below 128) or something with a length."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(data)]) + data


CLAIM = field(1, "ns") + field(2, "uid-1") + field(3, "claim")
DEVICE = field(1, "req-a") + field(1, "req-b") + field(2, "pool") + field(3, "dev") + field(4, "v/c=d")


@pytest.mark.parametrize("package", [wire.DRA_V1, wire.DRA_V1BETA1])
@pytest.mark.parametrize("method", ["NodePrepareResources", "NodeUnprepareResources"])
def test_a_request_carries_references_with_the_uid_before_the_name(package: str, method: str) -> None:
    assert wire.encode_claims(package, method, [ClaimRef("ns", "claim", "uid-1")] * 2) == field(1, CLAIM) * 2


@pytest.mark.parametrize("package", [wire.DRA_V1, wire.DRA_V1BETA1])
def test_a_prepare_response_maps_uids_to_devices_or_an_error(package: str) -> None:
    data = field(1, field(1, "uid-1") + field(2, field(1, DEVICE))) + field(
        1, field(1, "uid-2") + field(2, field(2, "broken"))
    )
    assert wire.decode_answers(package, "NodePrepareResources", data) == {
        "uid-1": ClaimAnswer((PreparedDevice("pool", "dev", ("req-a", "req-b"), ("v/c=d",)),)),
        "uid-2": ClaimAnswer(error="broken"),
    }


@pytest.mark.parametrize("package", [wire.DRA_V1, wire.DRA_V1BETA1])
def test_an_unprepare_response_may_have_empty_entries(package: str) -> None:
    data = field(1, field(1, "uid-1") + field(2, b"")) + field(1, field(1, "uid-2") + field(2, field(1, "busy")))
    assert wire.decode_answers(package, "NodeUnprepareResources", data) == {
        "uid-1": ClaimAnswer(),
        "uid-2": ClaimAnswer(error="busy"),
    }


def test_plugin_info_is_read_from_its_four_fields() -> None:
    data = field(1, "DRAPlugin") + field(2, "d") + field(3, "/s") + field(4, "v1.DRAPlugin") + field(4, "x")
    assert wire.decode_info(data) == wire.PluginInfo("DRAPlugin", "d", "/s", ("v1.DRAPlugin", "x"))
    assert wire.encode_nothing(None) == b""


@pytest.mark.parametrize(("error", "data"), [("", field(1, True)), ("no", field(2, "no"))])
def test_a_registration_status_is_success_or_an_error(error: str, data: bytes) -> None:
    assert wire.encode_status(error) == data


@pytest.mark.parametrize("package", [wire.HEALTH_V1, wire.HEALTH_V1ALPHA1])
@pytest.mark.parametrize(
    ("number", "health"), [(0, Health.UNKNOWN), (1, Health.HEALTHY), (2, Health.UNHEALTHY), (9, Health.UNKNOWN)]
)
def test_a_health_report_lists_devices(package: str, number: int, health: Health) -> None:
    device = field(1, field(1, "pool") + field(2, "dev"))
    data = field(1, device + field(2, number) + field(3, 99) + field(4, 20) + field(5, "why"))
    report = wire.decode_health(package, data)
    assert report == {("pool", "dev"): wire.DeviceHealth(health, "why")}
    assert report["pool", "dev"].timeout == 20


def test_the_messages_are_not_in_the_pool_that_generated_code_shares() -> None:
    descriptor = wire.message_class(wire.DRA_V1, "Claim").DESCRIPTOR
    assert descriptor.full_name == "k8s.io.kubelet.pkg.apis.dra.v1.Claim"
    assert descriptor.file.pool is not descriptor_pool.Default()
