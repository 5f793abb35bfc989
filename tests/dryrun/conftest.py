# SPDX-License-Identifier: Apache-2.0
"""Running dra-dryrun inside of a test, and things to run it on."""

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.dryrun.inventory import CLASSES
from dra_driver.dryrun.main import main
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import classes_of
from dra_driver.kube.resource.codec import V1
from tests.support.apiserver import api_server, connect
from tests.support.browser import address

__all__ = ["address"]

DryRun = Callable[..., tuple[int, str, str]]
Write = Callable[[str, object], Path]


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of these tests' own: they read all of it, whatever other tests leave in theirs."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as path:
        with connect(path) as client:
            install_classes(client)
        yield path


def install_classes(client: ApiClient) -> None:
    """The DeviceClasses that the driver's chart installs."""
    for one in CLASSES:
        selectors = [{"cel": {"expression": expression}} for expression in one.selectors]
        value = {"metadata": {"name": one.metadata.name}, "spec": {"selectors": selectors}}
        client.create(classes_of(V1), value)


@pytest.fixture(scope="session")
def client(kubeconfig: Path) -> Iterator[ApiClient]:
    """The administrator's client of that cluster."""
    with connect(kubeconfig) as connected:
        yield connected


class StandardError(io.TextIOWrapper):
    """Standard error of a command. It takes only what the command's own threads write: servers, schedulers and kubelets
    of fixtures are threads of the same process, and log when they like.
    """

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="", write_through=True)
        self._others = set(threading.enumerate()) - {threading.current_thread()}

    def write(self, text: str, /) -> int:
        return len(text) if threading.current_thread() in self._others else super().write(text)

    def text(self) -> str:
        """What was written."""
        self.seek(0)
        return self.read()


@pytest.fixture
def dryrun(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DryRun:
    """Runs the command where no cluster is configured: exit code, standard output, standard error."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def run(*arguments: object) -> tuple[int, str, str]:
        errors = StandardError()
        with contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return int(ended.value.code or 0), capsys.readouterr().out, errors.text()

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, object], Path]:
    """Writes a file and gives its path."""

    def make(name: str, content: object) -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return make


def slice_of(node: str, *devices: dict[str, Any], api_version: str = "resource.k8s.io/v1") -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-slice"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def gpu(name: str, model: str = "NVIDIA H100 80GB HBM3") -> dict[str, Any]:
    attributes = {"type": {"string": "gpu"}, "productName": {"string": model}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
