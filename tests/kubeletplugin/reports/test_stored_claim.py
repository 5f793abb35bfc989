# SPDX-License-Identifier: Apache-2.0
"""Claims in protobuf as other writers and servers may have made them."""

from typing import Any

import pytest

from dra_driver.kube.api import ConflictError, NotFoundError, StatusError
from kubeletplugin.protocol import claim_pb2
from kubeletplugin.reports.storedclaim import StoredClaim, failure

DRIVER, POOL = "gpu.nvidia.com", "node-a"
KEY = ("gpu-0", "")
UNKNOWN = b"\xfa\x3e\x03new"  # field 1007, which no version of the API has


def encoded(*devices: claim_pb2.DeviceStatus, more: bytes = b"") -> bytes:
    status = claim_pb2.ClaimStatus(allocation=claim_pb2.Allocation(), devices=devices)
    raw = claim_pb2.Claim(status=status).SerializeToString() + more
    return b"k8s\x00" + claim_pb2.Envelope(raw=raw).SerializeToString()


def device(**fields: Any) -> claim_pb2.DeviceStatus:
    return claim_pb2.DeviceStatus(driver=DRIVER, pool=POOL, device="gpu-0", **fields)


def ready(seconds: int) -> claim_pb2.Condition:
    return claim_pb2.Condition(type="Ready", status="True", last_transition_time=claim_pb2.Time(seconds=seconds))


@pytest.mark.parametrize("seconds", [0, 1 << 62, -(1 << 62)])
def test_a_time_that_no_calendar_has_is_empty(seconds: int) -> None:
    (entry,) = StoredClaim(encoded(device(conditions=[ready(seconds)]))).view()["status"]["devices"]
    assert entry["conditions"][0]["lastTransitionTime"] == ""


@pytest.mark.parametrize("raw", [b"{", b"\xff", b"[" * 10_000], ids=["cut", "no text", "deep"])
def test_data_that_cannot_be_parsed_is_left_out(raw: bytes) -> None:
    (entry,) = StoredClaim(encoded(device(data=claim_pb2.RawJson(raw=raw)))).view()["status"]["devices"]
    assert "data" not in entry


def test_unknown_fields_are_written_again() -> None:
    claim = StoredClaim(encoded(more=UNKNOWN))
    claim.set_entries(DRIVER, POOL, {KEY: {"data": {"uuid": "GPU-0"}}}, frozenset({"Ready"}), data=True)
    assert UNKNOWN in claim.encoded()


def test_an_entry_with_network_data_stays_when_its_condition_goes() -> None:
    claim = StoredClaim(encoded(device(conditions=[ready(1)], network_data=b"\x0a\x01x")))
    claim.set_entries(DRIVER, POOL, {}, frozenset({"Ready"}), data=True)
    (entry,) = claim.view()["status"]["devices"]
    assert entry["conditions"] == []


def test_an_empty_entry_of_another_writer_stays() -> None:
    claim = StoredClaim(encoded(device()))
    claim.set_entries(DRIVER, POOL, {}, frozenset({"Ready"}), data=True)
    assert len(claim.view()["status"]["devices"]) == 1


@pytest.mark.parametrize("body", [b"", b'{"kind":"ResourceClaim"}', b"k8s\x00\xff\xff"])
def test_another_form_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="protobuf"):
        StoredClaim(body)


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (404, b"\x1a\x04gone\x22\x08NotFound\x30\x94\x03", NotFoundError, "GET /x: 404 NotFound: gone"),
        (409, b'{"kind":"Status","reason":"Conflict","message":"m"}', ConflictError, "GET /x: 409 Conflict: m"),
        (502, b"Bad Gateway", StatusError, "GET /x: 502: Bad Gateway"),
    ],
    ids=["protobuf", "JSON", "proxy"],
)
def test_a_failed_request_is_an_error_with_its_reason(
    status: int, body: bytes, kind: type[StatusError], text: str
) -> None:
    if status == 404:
        body = b"k8s\x00" + claim_pb2.Envelope(raw=body).SerializeToString()
    error = failure("GET /x", status, body)
    assert type(error) is kind
    assert str(error) == text
