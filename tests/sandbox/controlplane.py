# SPDX-License-Identifier: Apache-2.0
"""The sandbox's scheduler and claim controller, and Kubernetes' own, for tests that expect the same of both."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dra_driver.cluster import ApiClient
from dra_driver.sandbox.claimcontroller import ClaimController
from dra_driver.sandbox.loop import ControlLoop
from dra_driver.sandbox.scheduler import Scheduler


@contextmanager
def program(path: str, log: Path, *arguments: str) -> Iterator[None]:
    """A program of Kubernetes, until the context is left."""
    with log.open("wb") as output:
        process = subprocess.Popen([path, *arguments], stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def stand_ins(client: ApiClient) -> Iterator[None]:
    """The sandbox's own."""
    loop = ControlLoop(client, [ClaimController(client), Scheduler(client)])
    loop.start()
    try:
        yield
    finally:
        loop.stop()


@contextmanager
def kubernetes(scheduler: str, manager: str, kubeconfig: Path) -> Iterator[None]:
    """kube-scheduler, and the controllers for claims and garbage of kube-controller-manager."""
    common = ("--kubeconfig", str(kubeconfig), "--secure-port=0", "--leader-elect=false")
    controllers = "--controllers=resourceclaim-controller,garbage-collector-controller"
    with ExitStack() as stack:
        stack.enter_context(program(scheduler, kubeconfig.with_name("scheduler.log"), *common))
        stack.enter_context(program(manager, kubeconfig.with_name("manager.log"), *common, controllers))
        yield
