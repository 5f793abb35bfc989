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

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOADED = """
import lark
lark.Lark.open = None
from dra_driver.scheduler.cel import compile_selector
print(compile_selector("device.driver == 'gpu.nvidia.com'").max_cost)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel, built twice."""
    folders = [tmp_path_factory.mktemp("wheel") for _ in range(2)]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for folder in folders:
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=240)
    return [wheel for folder in folders for wheel in folder.glob("*.whl")]


@pytest.mark.timeout(600)
def test_each_build_gives_the_same_wheel(wheels: list[Path]) -> None:
    first, second = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    assert first == second


@pytest.mark.timeout(600)
def test_installed_wheel_loads_the_saved_parser_of_cel(wheels: list[Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("4\n", "")


def test_the_parser_is_saved_by_the_packages_that_load_it() -> None:
    hook = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    extra = set(map(Requirement, PROJECT["project"]["optional-dependencies"]["dryrun"]))
    assert set(map(Requirement, hook["dependencies"])) <= extra
