# SPDX-License-Identifier: Apache-2.0
"""The dra-controller command: publishes the GPUs, and optionally the IMEX channel, of one node as ResourceSlices."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import click

from dra_driver import __version__
from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.gpu.fabric_marks import FabricTroubles
from dra_driver.gpu.health import HealthMonitor
from dra_driver.gpu.labels import node_labels
from dra_driver.gpu.marked import NodeMarks
from dra_driver.gpu.options import Hardware, PolicyOptions, hardware_options, policy_options
from dra_driver.gpu.ownership import MigMarks
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.view import HardwareView, Looks
from dra_driver.kube.api import ApiClient, Connection, load_credentials
from dra_driver.names import DRIVER_NAME
from dra_driver.process.boot import boot_time
from dra_driver.process.command import (
    end_when_a_thread_fails,
    flag,
    kubeconfig_option,
    logging_options,
    on_termination,
    run,
    version_option,
)
from dra_driver.process.endpoints import Endpoint, endpoint_options, new_registry, serving

from .node.channels import DOMAIN_FILE, ChannelDevices, DomainFile
from .node.labels import FeatureFile, Labeler, NodeFeature
from .node.metrics import PublisherMetrics
from .node.publisher import DriverOnNode, Publisher, Publishers, PublishReport
from .node.startup_taint import StartupTaint

log = logging.getLogger(__name__)

_SECONDS = click.FloatRange(min=1.0)


@click.command("dra-controller")
@flag("--node-name", required=True, help="The name of the Node on which this process runs.")
@kubeconfig_option
@hardware_options
@policy_options
@flag(
    "--kubelet-plugins-directory-path",
    type=click.Path(file_okay=False, path_type=Path),
    default="/var/lib/kubelet/plugins",
    help=f"kubelet's folder for plugins. The plugin keeps the marks of its MIG instances in {DRIVER_NAME} below it.",
)
@flag(
    "--compute-domains/--no-compute-domains",
    default=False,
    help=f"Publish the node's IMEX channel, too, as a device of driver {DOMAIN_DRIVER}.",
)
@flag(
    "--node-feature-role",
    default="",
    metavar="NAMESPACE/NAME",
    help="Write the labels of GPU Feature Discovery to a NodeFeature object in this namespace, owned by this Role.",
)
@flag(
    "--node-feature-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write these labels to a feature file instead, in the folder from which node feature discovery reads.",
)
@flag("--poll-interval", type=_SECONDS, default=5.0, help="Seconds between checks whether the hardware has changed.")
@flag(
    "--rediscover-interval",
    type=_SECONDS,
    default=60.0,
    help="Seconds after which all hardware is read again, even if no change was found.",
)
@flag(
    "--startup-taint",
    default="",
    metavar="KEY",
    help="Remove the taints with this key from the Node when its slices are published. By default, none.",
)
@endpoint_options
@logging_options
@version_option
def controller(  # noqa: PLR0913, PLR0917  # one for each flag
    node_name: str,
    kubeconfig: str | None,
    hardware: Hardware,
    policy: PolicyOptions,
    kubelet_plugins_directory_path: Path,
    compute_domains: bool,
    node_feature_role: str,
    node_feature_file: Path | None,
    poll_interval: float,
    rediscover_interval: float,
    startup_taint: str,
    endpoint: Endpoint,
) -> None:
    """Publish the GPUs of this node as ResourceSlices of driver gpu.nvidia.com, and keep them up to date."""
    connection = Connection(load_credentials(kubeconfig), f"dra-controller/{__version__}")
    end_when_a_thread_fails()
    wanted = policy.on_node(node_name, memory_limits=hardware.memory_limits_problem is None)
    folder = kubelet_plugins_directory_path / DRIVER_NAME
    taken = VfioMarks(folder / "vfio")
    session = hardware.session(taken)
    marks = NodeMarks(MigMarks(folder / "mig"), taken)
    health = HealthMonitor(session, marks=marks, booted_at=boot_time())
    view = HardwareView(
        session,
        marks=marks,
        troubles=FabricTroubles(folder / "fabric"),
        policy=wanted,
        health=health,
        looks=Looks(poll=poll_interval, everything=rediscover_interval),
    )
    with contextlib.ExitStack() as stack:
        view.start()  # first, because NVML takes long
        stack.callback(view.stop)
        drivers = (DRIVER_NAME, DOMAIN_DRIVER) if compute_domains else (DRIVER_NAME,)
        registry = new_registry()
        metrics = PublisherMetrics(registry, node_name, view.hanging, drivers)
        client = ApiClient(connection)
        taint = None
        if startup_taint:
            taint = StartupTaint(client, node_name, startup_taint, lambda: publishers.are_others_ready)
        publishers = Publishers(
            Publisher(
                client,
                DriverOnNode(node_name, view, wanted=lambda: wanted().optional_features),
                observe=lambda report: metrics.observe(report, DRIVER_NAME),
                unexpected=metrics.unexpected,
                taint=taint,
            )
        )
        ready = {"hardware": view.unready, "slices": lambda: publishers.problem}
        stack.enter_context(serving(endpoint, registry, ready=ready))
        if compute_domains:
            domain = DomainFile(kubelet_plugins_directory_path / DOMAIN_FILE)
            channels = ChannelDevices(view.last_inventory, hardware.proc_root, lambda: domain.uid)

            def published(report: PublishReport) -> None:
                metrics.observe(report, DOMAIN_DRIVER)
                if startup_taint:
                    publishers.first.wake()  # which may remove it now

            second = Publisher(
                client,
                DriverOnNode(node_name, channels, DOMAIN_DRIVER),
                observe=published,
                unexpected=metrics.unexpected,
            )
            publishers.add(second)
            domain.on_change = second.wake
            domain.start()
            stack.callback(domain.stop)
        session.threads.unexpected = metrics.unexpected
        view.on_change = health.on_change = publishers.wake
        if node_feature_file or node_feature_role:
            if node_feature_file:
                file = FeatureFile(node_feature_file)
                output = file.write
                stack.callback(file.remove)
            else:
                output = NodeFeature(client, node_name, node_feature_role).write
            labels = Labeler(
                output, lambda: node_labels(view.hardware, wanted(), hardware.sys_root), metrics.unexpected
            )

            def changed() -> None:
                publishers.wake()
                labels.wake()

            view.on_change = changed
            labels.start()
            stack.callback(labels.stop)
        on_termination(publishers.stop)
        log.info("started", extra={"version": __version__, "node": node_name, "server": connection.server})
        health.start()
        stack.callback(health.stop, wait=False)
        publishers.run()
    log.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(controller, arguments)


if __name__ == "__main__":
    main()
