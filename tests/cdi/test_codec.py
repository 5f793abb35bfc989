# SPDX-License-Identifier: Apache-2.0
"""Specs as JSON: the format's own field names, nothing lost on the way, and nothing unknown let through."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cdi import ContainerEdits, Mount, SpecError
from dra_driver.cdi.codec import decode, dumps, encode, loads
from dra_driver.cdi.spec import Device, DeviceNode, Hook, Spec, validate

from .specs import EVERYTHING, EVERYTHING_JSON, MINIMAL


def test_every_field_is_spelled_as_the_format_spells_it() -> None:
    assert encode(EVERYTHING) == EVERYTHING_JSON
    assert decode(EVERYTHING_JSON) == EVERYTHING


def test_absent_fields_are_not_written() -> None:
    assert encode(MINIMAL) == {
        "cdiVersion": "0.3.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "gpu0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    }


def test_null_is_absence() -> None:
    document = encode(MINIMAL) | {"annotations": None, "containerEdits": None}
    document["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] = None
    assert decode(document).devices == MINIMAL.devices


def changed(where: str, value: Any) -> dict[str, Any]:
    """The document with every field, but `value` at `where`."""
    document: dict[str, Any] = json.loads(json.dumps(EVERYTHING_JSON))
    place: Any = document
    *steps, last = [int(step) if step.isdigit() else step for step in where.split(".")]
    for step in steps:
        place = place[step]
    place[last] = value
    return document


EDITS = "devices.0.containerEdits"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (None, "must be an object, not null"),
        ([], "must be an object, not a list"),
        (changed("cdiVersion", None), "cdiVersion: is required"),
        (changed("cdiVersion", 1), "cdiVersion: must be a string, not a number"),
        (changed("kind", None), "kind: is required"),
        (changed("devices", None), "devices: is required"),
        (changed("devices", {}), "devices: must be a list, not an object"),
        (changed("devices.0", "gpu0"), "devices[0]: must be an object, not a string"),
        (changed("devices.0.name", None), "devices[0].name: is required"),
        (changed("devices.0.containerEdits", None), "devices[0].containerEdits: is required"),
        (changed("annotations", []), "annotations: must be an object, not a list"),
        (changed("annotations", {"a": 1}), "annotations[a]: must be a string, not a number"),
        (changed("device", []), "device: unknown field; did you mean 'devices'?"),
        (changed(f"{EDITS}.env", "A=1"), "devices[0].containerEdits.env: must be a list, not a string"),
        (changed(f"{EDITS}.env.0", True), "devices[0].containerEdits.env[0]: must be a string, not a boolean"),
        (changed(f"{EDITS}.devicenodes", []), "devices[0].containerEdits.devicenodes: unknown field; did you mean"),
        (changed(f"{EDITS}.intelRdt", {}), "devices[0].containerEdits.intelRdt: unknown field (known here: env, "),
        (changed(f"{EDITS}.deviceNodes.0.path", None), "deviceNodes[0].path: is required"),
        (changed(f"{EDITS}.deviceNodes.0.major", "195"), "deviceNodes[0].major: must be an integer, not a string"),
        (changed(f"{EDITS}.deviceNodes.0.major", 1.5), "deviceNodes[0].major: must be an integer, not a number"),
        (changed(f"{EDITS}.deviceNodes.0.major", True), "deviceNodes[0].major: must be an integer, not a boolean"),
        (changed(f"{EDITS}.mounts.0.hostPath", None), "mounts[0].hostPath: is required"),
        (changed(f"{EDITS}.hooks.0.hookName", None), "hooks[0].hookName: is required"),
        (changed(f"{EDITS}.hooks.0.path", "hook"), "hooks[0].path: 'hook' is not an absolute path"),
        (changed("cdiVersion", "0.6.0"), "cdiVersion: '0.6.0' is too old: the content needs 0.7.0"),
    ],
)
def test_what_a_runtime_would_refuse_is_refused(document: object, problem: str) -> None:
    with pytest.raises(SpecError) as raised:
        decode(document, "claim.json")
    (found,) = raised.value.problems
    assert problem in str(found)
    assert str(raised.value).startswith("claim.json: ")


def test_all_problems_of_form_are_reported_at_once() -> None:
    with pytest.raises(SpecError) as raised:
        decode({"devices": [{"name": 1}, {}], "extra": 1})
    assert [problem.path for problem in raised.value.problems] == [
        "cdiVersion",
        "kind",
        "devices[0].name",
        "devices[0].containerEdits",
        "devices[1].name",
        "devices[1].containerEdits",
        "extra",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a JSON document"),
        (dumps(MINIMAL)[:-10], "is not a JSON document"),
        (b"\xff\xfe\xfa", "is not a JSON document"),
        ('{"kind": "a/b", "kind": "c/d"}', "field 'kind' is given twice"),
    ],
)
def test_what_is_not_json_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        loads(text)


absolute_paths = st.text(string.ascii_letters + "/._-", max_size=12).map("/".__add__)
words = st.text(string.ascii_letters + string.digits, min_size=1, max_size=8)
env = st.lists(st.builds("{}={}".format, words, st.text(max_size=8)), max_size=2).map(tuple)
ids = st.none() | st.integers(0, 2**32 - 1)
nodes = st.builds(
    DeviceNode,
    path=absolute_paths,
    host_path=st.just("") | absolute_paths,
    type=st.sampled_from(["", "b", "c", "u", "p"]),
    major=st.integers(0, 2**20),
    minor=st.integers(0, 2**20),
    file_mode=st.none() | st.integers(0, 0o7777),
    permissions=st.sampled_from(["", "r", "rw", "rwm"]),
    uid=ids,
    gid=ids,
)
mounts = st.builds(Mount, absolute_paths, absolute_paths, st.lists(words, max_size=3).map(tuple), st.just("") | words)
hooks = st.builds(
    Hook,
    st.sampled_from(["prestart", "createContainer"]),
    absolute_paths,
    st.lists(st.text(max_size=8), max_size=3).map(tuple),
    env,
    st.none() | st.integers(1, 1000),
)
edits = st.builds(
    ContainerEdits,
    env=env,
    device_nodes=st.lists(nodes, max_size=2).map(tuple),
    mounts=st.lists(mounts, max_size=2).map(tuple),
    hooks=st.lists(hooks, max_size=2).map(tuple),
    additional_gids=st.lists(st.integers(0, 2**32 - 1), max_size=2).map(tuple),
)
annotations = st.dictionaries(words, st.text(max_size=8), max_size=2)
devices = st.lists(
    st.builds(Device, words, edits.filter(bool), annotations), min_size=1, max_size=3, unique_by=lambda d: d.name
)
specs = st.builds(Spec, st.just("nvidia.com/gpu"), devices.map(tuple), edits, annotations)


@given(specs)
def test_a_spec_survives_the_way_to_json_and_back(spec: Spec) -> None:
    assert validate(spec) == ()
    document = dumps(spec)
    read = loads(document)
    assert (read.kind, read.devices, read.container_edits) == (spec.kind, spec.devices, spec.container_edits)
    assert read.annotations == spec.annotations
    assert dumps(read) == document
