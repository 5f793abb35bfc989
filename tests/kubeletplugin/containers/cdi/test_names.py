# SPDX-License-Identifier: Apache-2.0
"""CDI names: which the library of the container runtimes takes."""

import pytest

from kubeletplugin.containers.cdi.spec import qualified_name


def test_a_qualified_name_is_put_together() -> None:
    assert qualified_name("nvidia.com/gpu", "gpu-0") == "nvidia.com/gpu=gpu-0"


@pytest.mark.parametrize("device", ["", "-gpu", "gpu-", "gpu/0", "gpu=0", "gpu 0", "gpu\n", "gpu-é"])
def test_a_device_name_of_other_characters_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="not a CDI device name"):
        qualified_name("nvidia.com/gpu", device)
