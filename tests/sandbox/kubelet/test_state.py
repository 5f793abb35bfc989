# SPDX-License-Identifier: Apache-2.0
"""The checkpoint of claims."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.sandbox.kubelet import ClaimRef
from dra_driver.sandbox.kubelet.state import CheckpointError, ClaimCache, ClaimInfo
from dra_driver.sandbox.kubelet.wire import PreparedDevice
from tests.support import examples

CLAIM = ClaimInfo(
    ClaimRef("default", "claim", "uid-7"),
    frozenset({"uid-p"}),
    {
        "a.example.com": (),
        "gpu.example.com": (PreparedDevice("node-1", "gpu-0", ("gpu",), ("example.com/claim=uid-7",)),),
    },
)

_text = st.text(max_size=8)
_names = st.lists(_text, max_size=3).map(tuple)
_devices = st.lists(st.builds(PreparedDevice, _text, _text, _names, _names), max_size=2).map(tuple)
_claims = st.builds(
    ClaimInfo,
    st.builds(ClaimRef, _text, _text, _text),
    st.frozensets(_text, max_size=3),
    st.dictionaries(_text, _devices, max_size=2),
    st.booleans(),
)


@settings(max_examples=examples(100))
@given(st.lists(_claims, max_size=3, unique_by=lambda claim: (claim.ref.namespace, claim.ref.name)))
def test_everything_but_the_prepared_flag_survives(claims: list[ClaimInfo]) -> None:
    with TemporaryDirectory() as folder:
        cache = ClaimCache(Path(folder) / "state")
        for claim in claims:
            cache.put(claim)
        cache.save()
        assert ClaimCache(Path(folder) / "state").all() == tuple(replace(claim, prepared=False) for claim in claims)


@pytest.mark.parametrize("text", ["{}[", "", "[7]", "7", '[{"ref": {}}]'])
def test_a_damaged_file_stops_kubelet_with_advice(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dra_manager_state"
    path.write_text(text)
    with pytest.raises(CheckpointError) as caught:
        ClaimCache(path)
    assert str(caught.value).startswith(f"{path}: not a checkpoint")
    assert "remove the file" in str(caught.value)


def test_saved_claim_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "dra_manager_state"
    cache = ClaimCache(path)
    cache.put(replace(CLAIM, prepared=True))
    cache.save()
    assert ClaimCache(path).all() == (CLAIM,)
    cache.remove(CLAIM.ref)
    cache.save()
    assert ClaimCache(path).all() == ()
