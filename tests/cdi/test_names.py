# SPDX-License-Identifier: Apache-2.0
"""CDI names: which the library of the container runtimes takes."""

import pytest

from dra_driver.cdi.spec import qualified_name, split_kind


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("k8s.gpu.nvidia.com/claim", ("k8s.gpu.nvidia.com", "claim")),
        ("nvidia.com/gpu", ("nvidia.com", "gpu")),
        ("v/c", ("v", "c")),
        ("vendor_1.com/A-b.c_d", ("vendor_1.com", "A-b.c_d")),
        ("v" * 253 + "/" + "c" * 63, ("v" * 253, "c" * 63)),
    ],
)
def test_a_kind_is_a_vendor_and_a_class(kind: str, parts: tuple[str, str]) -> None:
    assert split_kind(kind) == parts


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "claim",
        "/claim",
        "nvidia.com/",
        "nvidia.com/gpu/0",
        "8gpu.com/claim",
        "nvidia.com/8gpu",
        "-nvidia.com/gpu",
        "nvidia.com./gpu",
        "nvidia.com/gpu-",
        "nvidia com/gpu",
        "nvidia.com/gpu\n",
        "nvidia.com/gpü",
        "v" * 254 + "/c",
        "v/" + "c" * 64,
    ],
)
def test_anything_else_is_not_a_kind(kind: str) -> None:
    with pytest.raises(ValueError, match="not a CDI kind"):
        split_kind(kind)


@pytest.mark.parametrize("device", ["0", "gpu-0", "9f53-gpu-0-mig-1g.10gb-19-0", "a:b_c", "A"])
def test_a_qualified_name_is_put_together(device: str) -> None:
    name = qualified_name("nvidia.com/gpu", device)
    assert name == f"nvidia.com/gpu={device}"


@pytest.mark.parametrize("device", ["", "-gpu", "gpu-", "gpu/0", "gpu=0", "gpu 0", "gpu\n", "gpu-é"])
def test_a_device_name_of_other_characters_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="not a CDI device name"):
        qualified_name("nvidia.com/gpu", device)
