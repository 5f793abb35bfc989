# SPDX-License-Identifier: Apache-2.0
"""The simulated /sys has the effects and errors of the kernel's (drivers/base/bus.c, drivers/pci/pci-driver.c)."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.kernel import AUDIO, NVIDIA, VFIO, Kernel
from tests.support.waiting import wait_for

from .conftest import audio_of

pytestmark = pytest.mark.node


def write(kernel: Kernel, file: str, text: str) -> int:
    """Write as a program does. The errno, or 0."""
    descriptor = os.open(kernel.driver_root / "sys/bus/pci" / file, os.O_WRONLY)
    try:
        os.write(descriptor, f"{text}\n".encode())
    except OSError as error:
        return error.errno or -1
    finally:
        os.close(descriptor)
    return 0


def load(kernel: Kernel) -> None:
    """Load vfio-pci."""
    subprocess.run([kernel.driver_root / "usr/sbin/modprobe", "vfio_pci"], check=True)


def test_a_driver_is_bound_only_to_devices_that_it_matches_and_that_are_free(kernel: Kernel) -> None:
    load(kernel)
    address = kernel.gpus[0]
    vfio, nvidia, override = (f"drivers/{VFIO}", f"drivers/{NVIDIA}", f"devices/{address}/driver_override")
    assert write(kernel, f"{vfio}/bind", address) == errno.ENODEV, "no id of it, and no override"
    assert write(kernel, f"{vfio}/unbind", address) == errno.ENODEV, "it has another driver"
    assert write(kernel, f"{nvidia}/bind", address) == errno.EBUSY, "it has a driver"
    assert write(kernel, override, VFIO) == 0
    assert kernel.driver(address) == NVIDIA, "an override alone changes nothing"
    assert write(kernel, f"{nvidia}/unbind", address) == 0
    assert write(kernel, f"{nvidia}/bind", address) == errno.ENODEV, "the override is for another driver"
    assert write(kernel, f"{vfio}/bind", address) == 0
    assert (kernel.driver(address), kernel.override(address)) == (VFIO, VFIO)
    assert write(kernel, f"{vfio}/bind", "0000:ff:00.0") == errno.ENODEV


def test_a_probe_binds_what_matches(kernel: Kernel) -> None:
    load(kernel)
    gpu, audio = kernel.gpus[0], audio_of(kernel.gpus[0])
    for address in (gpu, audio):
        kernel.force(address, None)
    assert write(kernel, f"devices/{gpu}/driver_override", VFIO) == 0
    for address in (gpu, audio):
        assert write(kernel, "drivers_probe", address) == 0
    assert (kernel.driver(gpu), kernel.driver(audio)) == (VFIO, AUDIO)
    assert write(kernel, f"devices/{gpu}/driver_override", "") == 0
    assert kernel.override(gpu) == "(null)"


def test_the_node_of_a_group_comes_late_and_goes_with_its_last_device(kernel: Kernel) -> None:
    gpu, audio = kernel.gpus[0], audio_of(kernel.gpus[0])
    node: Path = kernel.dev / f"vfio/{kernel.group(gpu)}"
    for address in (gpu, audio):
        kernel.force(address, VFIO)
    wait_for(node.exists, "the node")
    kernel.force(gpu, NVIDIA)
    assert node.exists()
    kernel.force(audio, AUDIO)
    assert not node.exists()


def test_nvml_has_a_gpu_only_while_it_is_nvidias(kernel: Kernel) -> None:
    def count() -> int:
        nvml = kernel.node.nvml()
        nvml.initialize()
        return nvml.device_count()

    assert count() == 5
    kernel.force(kernel.gpus[0], VFIO)
    assert count() == 4
    kernel.force(kernel.gpus[0], NVIDIA)
    assert count() == 5


def test_a_write_may_block_and_files_can_be_read_meanwhile(kernel: Kernel) -> None:
    address = kernel.gpus[0]
    kernel.hold(address)
    file = kernel.driver_root / f"sys/bus/pci/drivers/{NVIDIA}/unbind"
    with subprocess.Popen(["sh", "-c", f"echo {address} > {file}"]) as writer:
        wait_for(lambda: kernel.writes, "the write")
        assert (kernel.driver_root / f"sys/bus/pci/devices/{address}/vendor").read_text() == "0x10de\n"
        assert writer.poll() is None
        kernel.release(address)
    assert kernel.driver(address) is None
