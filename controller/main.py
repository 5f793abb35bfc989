# SPDX-License-Identifier: Apache-2.0
"""The dra-controller command: publishes the GPUs of one node as ResourceSlices."""

import logging
import signal
from collections.abc import Sequence
from pathlib import Path

import click

from dra_driver import __version__
from dra_driver.cluster import ApiClient, ConfigError, Connection, UnreachableError, load_credentials
from dra_driver.command import (
    UserError,
    end_when_a_thread_fails,
    kubeconfig_option,
    logging_options,
    run,
    version_option,
)
from dra_driver.gpu.devices import GpuDevices, describe
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.options import Hardware, hardware_options

from .publisher import Publisher, Timing

log = logging.getLogger(__name__)


@click.command()
@click.option("--node-name", required=True, envvar="NODE_NAME", show_envvar=True, help="The Node this process runs on.")
@kubeconfig_option
@hardware_options
@click.option(
    "--rediscover-interval",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    envvar="REDISCOVER_INTERVAL",
    show_envvar=True,
    help="Seconds between looks at the hardware.",
)
@logging_options
@version_option
def controller(node_name: str, kubeconfig: str | None, hardware: Hardware, rediscover_interval: float) -> None:
    """Publish the GPUs of this node as ResourceSlices of driver gpu.nvidia.com, and keep them up to date."""
    try:
        connection = Connection(load_credentials(kubeconfig), f"dra-controller/{__version__}")
    except (ConfigError, UnreachableError) as error:
        raise UserError(str(error)) from None
    end_when_a_thread_fails()
    discover = Discovery(hardware)
    publisher = Publisher(ApiClient(connection), node_name, discover, Timing(rediscover=rediscover_interval))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: publisher.stop())
    log.info("started", extra={"version": __version__, "node": node_name, "server": connection.server})
    publisher.run()
    log.info("stopped")


class Discovery:
    """Reads the node's devices, initializing NVML before the first time. Says in the log what is wrong with a GPU."""

    def __init__(self, hardware: Hardware) -> None:
        self._nvml = hardware.nvml()
        self._sys_root = hardware.sys_root
        self._initialized = False
        self._reported: set[str] = set()

    def __call__(self) -> Sequence[GpuDevices]:
        if not self._initialized:
            self._nvml.initialize()
            self._initialized = True
        inventory = read_inventory(self._nvml, Path(self._sys_root))
        problems = [f"GPU {failure.index} is left out: {failure.reason}" for failure in inventory.failures]
        problems += [f"GPU {gpu.index} ({gpu.uuid}): {problem}" for gpu in inventory.gpus for problem in gpu.problems]
        for problem in problems:
            if problem not in self._reported:
                log.warning("%s", problem)
        self._reported = set(problems)
        return describe(inventory)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(controller, arguments)


if __name__ == "__main__":
    main()
