# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md and docs/how-to/build-the-image.md that build, push and run the image.

PYTHON_IMAGE names a base image that Docker or Podman already has: nothing is downloaded but Python packages. Images get
the name of a registry on localhost and are removed afterwards.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dra_driver import __version__

from .checks import IMAGE
from .commands import ROOT, Command, given_to, inline
from .registry import Registry, registry
from .running import copy_checkout

BASE = os.environ.get("PYTHON_IMAGE", "")
COMPILER = os.environ.get("GCC_IMAGE", "")
PAGE = (ROOT / "docs/how-to/build-the-image.md").read_text(encoding="utf-8")
STEPS = given_to(__name__)
BUILDS = [step for step in STEPS if step.text.startswith("docker build -t")]
PUSHES = [step for step in STEPS if step.text.startswith("docker push")]
RUNS = [step for step in STEPS if step.text.startswith("docker run")]
(VARIABLES,) = (step for step in STEPS if step.text.startswith("export "))
(WITH_PODMAN,) = (text for text in inline(PAGE) if text.startswith("podman build"))
LIMITS = " --ulimit nofile=4096:4096 --ulimit nproc=1024:1024"
"""Low, because Podman may not raise those of a container above its own."""

pytestmark = [
    pytest.mark.skipif(not (BASE and COMPILER), reason="PYTHON_IMAGE and GCC_IMAGE do not name the base images"),
    pytest.mark.timeout(600),
]


@dataclass(frozen=True)
class Engine:
    """Docker or Podman, and the registry that stands for the reader's."""

    program: str
    registry: Registry

    @property
    def image(self) -> str:
        """What is built."""
        return f"{self.registry.address}/{IMAGE}"

    def here(self, text: str) -> str:
        """A documented command with our engine, base, image and registry."""
        podman = self.program == "podman"
        limits = LIMITS if podman else ""
        bases = f"--build-arg PYTHON_IMAGE={BASE} --build-arg GCC_IMAGE={COMPILER}"
        for documented, here in {
            "docker ": f"{self.program} ",
            " build ": f" build {bases}{f'{limits} --layers=false' if podman else ''} ",
            " push ": f" push{' --tls-verify=false' if podman else ''} ",
            " run ": f" run{limits} ",
            " IMAGE ": f" {self.image} ",
            f" {IMAGE}": f" {self.image}",
            "REGISTRY": self.registry.address,
        }.items():
            text = text.replace(documented, here)
        return text

    def run(self, text: str, *, fails: bool = False) -> str:
        """Run a documented command here; gives what it prints."""
        command = ["bash", "-euc", self.here(text)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == int(fails), done.stdout + done.stderr
        return done.stdout

    def inspect(self) -> Any:
        """What the engine knows of the image."""
        (found,) = json.loads(self.run(f"docker image inspect {self.image}"))
        return found


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The first that has the base."""
    for program in ("docker", "podman"):
        have = [program, "image", "inspect", BASE]
        if shutil.which(program) and subprocess.run(have, capture_output=True, check=False).returncode == 0:
            with registry() as server:
                yield Engine(program, server)
            return
    pytest.skip(f"neither Docker nor Podman has {BASE}")


@pytest.fixture(scope="module")
def built(engine: Engine) -> Iterator[Engine]:
    """With the image, built by each command for it that is different from the others."""
    made = set()
    for text in sorted({engine.here(command.text) for command in BUILDS}):
        engine.run(text)
        made.add(engine.inspect()["Id"])
    yield engine
    subprocess.run([engine.program, "rmi", "--force", *made], capture_output=True, check=True)


def test_the_image_is_not_roots_and_says_what_it_is(built: Engine) -> None:
    config = built.inspect()["Config"]
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.version"] == __version__


@pytest.mark.parametrize("command", PUSHES, ids=str)
def test_the_image_is_pushed_with_all_that_it_is_made_of(command: Command, built: Engine) -> None:
    built.run(command.text)
    manifest = built.registry.manifests[IMAGE]
    assert {one["digest"] for one in (manifest["config"], *manifest["layers"])} <= built.registry.digests


@pytest.mark.parametrize("command", RUNS, ids=str)
def test_check_fails_on_a_machine_without_the_driver(command: Command, built: Engine) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has NVIDIA's driver")
    printed = built.run(command.text, fails=True)
    assert "FAIL  driver module: " in printed
    assert f"PASS  this program: dra-driver-gpu {__version__}, Python 3." in printed
    assert "its configuration cannot be read from this container" not in printed


def test_two_builds_of_one_commit_by_podman_are_the_same_image(engine: Engine, tmp_path: Path) -> None:
    if engine.program != "podman":
        pytest.skip("Docker has the base, so it is used")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    copy_checkout(tmp_path / "checkout")
    variables = f"export GIT_DIR={ROOT}/.git; cd {tmp_path}/checkout; {VARIABLES.text.replace(IMAGE, f'dated-{IMAGE}')}"
    look = "podman image inspect --format '{{.Id}} {{.Created.Unix}}' $IMAGE && podman rmi $IMAGE >&2"
    build = f"{variables}\n{WITH_PODMAN} >&2\n{look}\necho $SOURCE_DATE_EPOCH"
    image, created, commit = engine.run(build).split()
    assert created == commit
    assert engine.run(build).split()[0] == image
