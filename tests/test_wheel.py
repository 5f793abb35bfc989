# SPDX-License-Identifier: Apache-2.0
"""The wheel, built as `make build` does it: what it has besides the files of the repository."""

import hashlib
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dra_driver.sandbox.proto import compile_definitions

from .support.wheels import built_wheels

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PARSER = """
import lark
lark.Lark.open = None
from dra_driver.scheduler.cel import compile_selector
print(compile_selector("device.driver == 'gpu.nvidia.com'").max_cost)
"""
MESSAGES = """
from dra_driver.sandbox import proto
proto.compile_definitions = None
print(proto.message_class("k8s.io.api.core.v1.Pod").DESCRIPTOR.full_name)
"""


@pytest.mark.timeout(600)
def test_each_build_gives_the_same_wheel() -> None:
    first, second, _ = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in built_wheels())
    assert first == second


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(built_wheels().first) as wheel:
        wheel.extractall(folder)
    return folder


def output_of(program: str, installed: Path) -> str:
    """What a program prints that imports the modules of the wheel."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_installed_wheel_loads_the_saved_parser_of_cel(installed: Path) -> None:
    assert output_of(PARSER, installed) == "4\n"


@pytest.mark.timeout(600)
def test_wheel_has_the_compiled_definitions_of_protobuf_messages(installed: Path) -> None:
    assert (installed / "dra_driver/sandbox/proto/kubernetes.binpb").read_bytes() == compile_definitions()


@pytest.mark.timeout(600)
def test_installed_wheel_needs_no_protoc_for_protobuf_messages(installed: Path) -> None:
    assert output_of(MESSAGES, installed) == "k8s.io.api.core.v1.Pod\n"


def test_generated_files_are_made_by_the_packages_of_users_and_developers() -> None:
    hook = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    dryrun = set(map(Requirement, PROJECT["project"]["optional-dependencies"]["dryrun"]))
    dev = set(map(Requirement, PROJECT["dependency-groups"]["dev"]))
    assert set(map(Requirement, hook["dependencies"])) <= dryrun | dev
