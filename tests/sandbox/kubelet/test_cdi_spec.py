# SPDX-License-Identifier: Apache-2.0
"""Which CDI specs a runtime takes."""

import json
from typing import Any

import pytest

from dra_driver.sandbox.kubelet.cdi import CdiError, Device, DeviceNode, Edits, Hook, Mount, Spec, load, minimum_version

ENV = {"env": ["A=1"]}


def spec(edits: Any = None, *, device: str = "dev", **top: Any) -> dict[str, Any]:
    """A spec with one device; `top` replaces fields of the spec, `edits` the device's."""
    devices = [{"name": device, "containerEdits": ENV if edits is None else edits}]
    return {"cdiVersion": "1.1.0", "kind": "example.com/gpu", "devices": devices} | top


def test_every_field_is_read() -> None:
    edits = {
        "env": ["A=1"],
        "deviceNodes": [
            {
                "path": "/dev/a",
                "hostPath": "/host/a",
                "type": "c",
                "major": 195,
                "minor": 1,
                "fileMode": 438,
                "permissions": "rw",
                "uid": 1,
                "gid": 2,
            }
        ],
        "hooks": [
            {"hookName": "createContainer", "path": "/h", "args": ["h", "x"], "env": ["B=2"], "timeout": 3},
        ],
        "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"], "type": "bind"}],
        "additionalGids": [0, 7],
    }
    expected = Edits(
        env=("A=1",),
        device_nodes=(DeviceNode("/dev/a", "/host/a", "c", 195, 1, 438, "rw", 1, 2),),
        hooks=(Hook("createContainer", "/h", ("h", "x"), ("B=2",), 3),),
        mounts=(Mount("/a", "/b", ("ro",), "bind"),),
        additional_gids=(0, 7),
    )
    raw = spec(edits, containerEdits=edits, annotations={"k": "v"})
    raw["devices"][0]["annotations"] = {"d": "w"}
    loaded = load(json.dumps(raw))
    assert loaded == Spec("1.1.0", "example.com/gpu", {"k": "v"}, (Device("dev", {"d": "w"}, expected),), expected)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(CdiError, match="duplicate key"):
        load('{"kind": "a/b", "kind": "c/d"}')


@pytest.mark.parametrize(
    ("raw", "version"),
    [
        (spec(), "0.3.0"),
        (spec({"mounts": [{"hostPath": "/a", "containerPath": "/a"}]}), "0.3.0"),
        (spec({"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}), "0.4.0"),
        (spec({"deviceNodes": [{"path": "/dev/a", "hostPath": "/b"}]}), "0.5.0"),
        (spec(containerEdits={"deviceNodes": [{"path": "/dev/a", "hostPath": "/b"}]}), "0.5.0"),
        (spec(device="067798be"), "0.5.0"),
        (spec(annotations={"a": "b"}), "0.6.0"),
        (spec(kind="example.com/a.b"), "0.6.0"),
        (spec({"additionalGids": [5]}), "0.7.0"),
    ],
)
def test_a_spec_needs_the_version_of_what_it_uses_and_not_less(raw: dict[str, Any], version: str) -> None:
    assert minimum_version(load(json.dumps(raw))) == version
    load(json.dumps(raw | {"cdiVersion": version}))
    older = {"0.4.0": "0.3.0", "0.5.0": "0.4.0", "0.6.0": "0.5.0", "0.7.0": "0.6.0"}.get(version)
    with pytest.raises(CdiError, match=f"must be at least v{version}"):
        load(json.dumps(raw | {"cdiVersion": older or "0.2.0"}))


@pytest.mark.parametrize(("version", "known"), [("v0.5.0", True), ("1.2.0", False), ("0.5", False), ("", False)])
def test_a_runtime_takes_the_versions_that_it_knows(version: str, known: bool) -> None:
    text = json.dumps(spec(cdiVersion=version))
    if known:
        assert load(text).version == version
    else:
        with pytest.raises(CdiError, match=f'invalid version "{version}"'):
            load(text)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (spec(extra=1), 'unknown field "extra"'),
        (spec({"env": ["A=1"], "environ": []}), r'spec.devices\[0\].containerEdits: unknown field "environ"'),
        (spec({"deviceNodes": [{"path": "/dev/a", "Major": 1}]}), 'unknown field "Major"'),
        (spec({"netDevices": []}), 'unknown field "netDevices"'),
        (spec({"deviceNodes": [{"path": "/dev/a", "major": "195"}]}), "major is not an integer"),
        (spec({"deviceNodes": [{"path": "/dev/a", "fileMode": True}]}), "fileMode is not an integer"),
        (spec({"additionalGids": [-1]}), r"additionalGids\[0\] is negative"),
        (spec({"env": "A=1"}), "env is not a list"),
        (spec(annotations=[]), "annotations is not an object"),
        ([], "spec is not an object"),
        (spec(kind="gpu"), "is not VENDOR/CLASS"),
        (spec(kind="3com.com/gpu"), "is not VENDOR/CLASS"),
        (spec(kind="example.com/gpu-"), "is not VENDOR/CLASS"),
        (spec(kind="example.com/a/b"), "is not VENDOR/CLASS"),
        (spec(devices=[]), "no devices"),
        (spec(device=""), 'invalid device name ""'),
        (spec(device="a/b"), "invalid device name"),
        (spec(device="a="), "invalid device name"),
        (spec(device="-a"), "invalid device name"),
        (spec(devices=[{"name": "a", "containerEdits": ENV}] * 2), 'multiple device "a"'),
        (spec({}), "empty device edits"),
        (spec({"env": ["=1"]}), 'invalid environment variable "=1"'),
        (spec({"env": ["A"]}), 'invalid environment variable "A"'),
        (spec({"deviceNodes": [{"hostPath": "/dev/a"}]}), "empty.* device path"),
        (spec({"deviceNodes": [{"path": "/dev/a", "type": "x"}]}), 'invalid type "x"'),
        (spec({"deviceNodes": [{"path": "/dev/a", "permissions": "rwx"}]}), 'invalid permissions "rwx"'),
        (spec({"deviceNodes": [{"path": "/dev/a", "permissions": "none"}]}), 'invalid permissions "none"'),
        (spec({"hooks": [{"hookName": "create", "path": "/h"}]}), 'invalid hook name "create"'),
        (spec({"hooks": [{"hookName": "prestart", "path": "h"}]}), "not absolute"),
        (spec({"hooks": [{"hookName": "prestart"}]}), "not absolute"),
        (spec({"mounts": [{"hostPath": "/a"}]}), "invalid mount"),
        (spec(containerEdits={"env": ["A"]}), "invalid environment variable"),
    ],
)
def test_a_malformed_spec_is_refused(raw: object, error: str) -> None:
    with pytest.raises(CdiError, match=error):
        load(json.dumps(raw))


@pytest.mark.parametrize("text", ["", "{", "null", "\x00"])
def test_text_that_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(CdiError):
        load(text)
