# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of claims, in kubelet's own form."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.sandbox.kubelet import CheckpointError, ClaimInfo, ClaimRef, PreparedDevice
from dra_driver.sandbox.kubelet.state import ClaimCache, decode, encode

GOLDEN = (
    r'{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",'
    r"\"ClaimInfoStateList\":[{\"ClaimUID\":\"uid-7\",\"ClaimName\":\"claim\","
    r"\"Namespace\":\"default\",\"PodUIDs\":{\"uid-p\":{}},"
    r"\"DriverState\":{\"a.example.com\":{\"Devices\":null},"
    r"\"gpu.example.com\":{\"Devices\":[{\"PoolName\":\"node-1\",\"DeviceName\":\"gpu-0\","
    r"\"ShareID\":\"s\",\"RequestNames\":[\"gpu\"],"
    r'\"CDIDeviceIDs\":[\"example.com/claim=uid-7\"]}]}}}]}","Checksum":4225351945}'
)
"""A file as kubelet 1.36 writes it: null where a driver has no devices, and the CRC-32 of Data."""

GOLDEN_CLAIM = ClaimInfo(
    ClaimRef("default", "claim", "uid-7"),
    frozenset({"uid-p"}),
    {
        "a.example.com": (),
        "gpu.example.com": (PreparedDevice("node-1", "gpu-0", ("gpu",), ("example.com/claim=uid-7",), "s"),),
    },
)


def test_kubelets_own_file_is_read_and_written() -> None:
    assert decode(GOLDEN) == (GOLDEN_CLAIM,)
    assert encode([GOLDEN_CLAIM]) == GOLDEN


_text = st.text(max_size=8)
_names = st.lists(_text, max_size=3).map(tuple)
_devices = st.lists(st.builds(PreparedDevice, _text, _text, _names, _names, st.none() | _text), max_size=2).map(tuple)
_claims = st.builds(
    ClaimInfo,
    st.builds(ClaimRef, _text, _text, _text),
    st.frozensets(_text, max_size=3),
    st.dictionaries(_text, _devices, max_size=2),
    st.booleans(),
)


@given(st.lists(_claims, max_size=3))
def test_everything_but_the_prepared_flag_survives(claims: list[ClaimInfo]) -> None:
    assert decode(encode(claims)) == tuple(replace(claim, prepared=False) for claim in claims)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (GOLDEN.replace("gpu-0", "gpu-1"), "checkpoint is corrupted"),
        ("{}", "not a DRA checkpoint"),
        ("", "not a DRA checkpoint"),
        ("[]", "not a DRA checkpoint"),
        (json.dumps({"Data": "{}", "Checksum": 2745614147}), "unknown checkpoint None"),
    ],
)
def test_a_damaged_file_stops_kubelet_with_advice(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "dra_manager_state"
    path.write_text(text)
    with pytest.raises(CheckpointError) as caught:
        ClaimCache(path)
    assert error in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "remove the file" in str(caught.value)


def test_what_was_saved_is_there_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    cache = ClaimCache(path)
    cache.put(replace(GOLDEN_CLAIM, prepared=True))
    cache.save()
    assert ClaimCache(path).all() == (GOLDEN_CLAIM,)
    cache.remove(GOLDEN_CLAIM.ref)
    cache.save()
    assert ClaimCache(path).all() == ()
