# SPDX-License-Identifier: Apache-2.0
"""Which names and versions resource.k8s.io takes."""

from collections.abc import Callable

import pytest

from dra_driver.kube.resource import Version, names
from dra_driver.kube.resource.device import from_dotted

NAMES: list[tuple[Callable[[str], bool], list[str], list[str]]] = [
    (
        names.is_label,
        ["a", "0", "gpu-0", "a--b", "gpu-0-mig-1g10gb-19-0", "a" * 63],
        ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "ä", "a\n", "\u0660"],
    ),
    (
        names.is_subdomain,
        ["node-a", "node-a.example.com", "1.2", "a" * 253],
        ["", ".", "a..b", "a.", ".a", "a.-b", "A.b", "a/b", "a" * 254],
    ),
    (
        names.is_driver_name,
        ["gpu.nvidia.com", "GPU.nvidia.com", "a" * 63],
        ["", "gpu.nvidia.com/x", "gpu_nvidia.com", "a" * 64],
    ),
    (
        names.is_pool_name,
        ["node-a", "node-a/gpu", "a.b/c.d/e", "/".join(["a" * 62] * 4)],
        ["", "/", "a/", "/a", "a//b", "A", "/".join(["a" * 63] * 4)],
    ),
    (
        names.is_qualified_name,
        ["profile", "_x", "cudaComputeCapability", "resource.kubernetes.io/pcieRoot", "a" * 32],
        ["", "9x", "a-b", "a.b", "/a", "a/", "a/b/c", "a_b/c", "a" * 33, "a" * 64 + "/x", "é"],
    ),
    (
        names.is_label_key,
        ["a", "A.b_c-d", "gpu.nvidia.com/xid", "1", "a" * 63],
        ["", "-a", "a-", "a/", "/a", "a/b/c", "A/b", "a b", "a" * 64],
    ),
    (names.is_label_value, ["", "true", "Xid-79", "a" * 63], ["-a", "a-", "a/b", "a b", "a" * 64]),
]

VERSIONS = {
    "570.158.01": "570.158.1",
    "580.95.05": "580.95.5",
    "12.8": "12.8.0",
    "13": "13.0.0",
    "v1.2.3": "1.2.3",
    " 535.104.12\n": "535.104.12",
    "0.00.000": "0.0.0",
}


@pytest.mark.parametrize(
    ("rule", "name"),
    [pytest.param(rule, name, id=f"{rule.__name__}-{name[:12]!r}") for rule, good, _ in NAMES for name in good],
)
def test_the_rule_takes(rule: Callable[[str], bool], name: str) -> None:
    assert rule(name)


@pytest.mark.parametrize(
    ("rule", "name"),
    [pytest.param(rule, name, id=f"{rule.__name__}-{name[:12]!r}") for rule, _, bad in NAMES for name in bad],
)
def test_the_rule_refuses(rule: Callable[[str], bool], name: str) -> None:
    assert not rule(name)


@pytest.mark.parametrize(("dotted", "version"), VERSIONS.items())
def test_a_drivers_dotted_number_becomes_a_strict_version(dotted: str, version: str) -> None:
    found = from_dotted(dotted)
    assert found is not None
    assert (found.text, found.is_strict) == (version, True)


@pytest.mark.parametrize("text", ["", "r570", "570.158.01-beta", "1.2.3.4", "1..2", "570.", "n/a"])
def test_text_without_dotted_number_gives_no_version(text: str) -> None:
    assert from_dotted(text) is None


@pytest.mark.parametrize("text", ["1.2.3", "0.0.0", "1.0.0-rc.1", "1.0.0-0a+build.7", "1.0.0+001", "10.20.30"])
def test_the_api_takes_strict_versions(text: str) -> None:
    assert Version(text).is_strict


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "v1.2.3", "1.2.3.4", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3\n"]
)
def test_the_api_refuses_other_versions(text: str) -> None:
    assert not Version(text).is_strict


def test_versions_are_equal_when_their_text_is() -> None:
    assert Version("1.0.0") == Version("1.0.0")
    assert Version("1.0.0") != Version("1.0.0+build")
