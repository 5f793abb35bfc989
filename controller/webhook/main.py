# SPDX-License-Identifier: Apache-2.0
"""The dra-webhook command."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import click

from dra_driver import __version__
from dra_driver.process.command import flag, logging_options, on_termination, run, version_option

from .server import TlsFiles, serving

log = logging.getLogger(__name__)

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("dra-webhook")
@flag(
    "--tls-cert-file",
    type=_FILE,
    required=True,
    help="The TLS certificate of the webhook (PEM). It is read again when it changes.",
)
@flag("--tls-private-key-file", type=_FILE, required=True, help="The private key of the certificate (PEM).")
@flag("--port", type=click.IntRange(0, 65535), default=443, help="The port on which to serve; 0 selects a free port.")
@logging_options
@version_option
def webhook(tls_cert_file: Path, tls_private_key_file: Path, port: int) -> None:
    """Refuse ResourceClaims, templates and DeviceClasses with an invalid configuration for driver gpu.nvidia.com."""
    tls = TlsFiles(tls_cert_file, tls_private_key_file)
    stopped = threading.Event()
    on_termination(stopped.set)
    with serving(port, tls) as bound:
        log.info("started", extra={"version": __version__, "port": bound})
        stopped.wait()
    log.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(webhook, arguments)


if __name__ == "__main__":
    main()
