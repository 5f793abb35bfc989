# SPDX-License-Identifier: Apache-2.0
"""The wheel, built as `make build` does it: what it has besides the files of the repository."""

import hashlib
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest
from build import ProjectBuilder
from build.env import DefaultIsolatedEnv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyproject_hooks import quiet_subprocess_runner

from dra_driver.sandbox.proto import compile_definitions

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


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel, built twice, by processes of their own in one environment with the build requirements."""
    packages = tmp_path_factory.mktemp("packages")

    def run(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        quiet_subprocess_runner(cmd, cwd, {**(extra_environ or {}), "PYTHONPATH": str(packages)})

    with DefaultIsolatedEnv() as environment:
        builder = ProjectBuilder.from_isolated_env(environment, ROOT, run)
        environment.install(builder.build_system_requires)
        link_packages(builder.get_requires_for_build("wheel"), packages)
        return [Path(builder.build("wheel", tmp_path_factory.mktemp("wheel"))) for _ in range(2)]


def link_packages(requirements: Iterable[str], folder: Path) -> None:
    """Fill a folder with links to the packages that are required, and to what these require, as they are installed for
    the tests: to install them anew takes most of the time of a build.
    """
    waiting, seen = list(map(Requirement, requirements)), set[str]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        package = distribution(name)
        assert package.version in requirement.specifier
        waiting += map(Requirement, package.requires or ())
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():  # packages may share a namespace
                (folder / top).symlink_to(Path(str(package.locate_file(top))))


@pytest.mark.timeout(600)
def test_each_build_gives_the_same_wheel(wheels: list[Path]) -> None:
    first, second = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    assert first == second


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheels[0]) as wheel:
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
