# SPDX-License-Identifier: Apache-2.0
"""Builds wheels: those of this checkout, once for all workers of a run, and those of other trees."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final, NamedTuple

from build import ProjectBuilder
from build.env import DefaultIsolatedEnv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyproject_hooks import quiet_subprocess_runner

from .dockerfile import copied
from .shared import made_once

_ROOT: Final = Path(__file__).parents[2]


class Wheels(NamedTuple):
    """Wheels of this checkout."""

    first: Path
    """As `make build` makes it."""
    second: Path
    """The same, made once more."""
    of_image: Path
    """Made as the Dockerfile makes it: without the build hook, of no other files than the image's build has."""


def built_wheels() -> Wheels:
    """The wheels. The first caller of a run builds them."""
    folder = made_once("wheels", _build)
    return Wheels(*(next((folder / name).glob("*.whl")) for name in Wheels._fields))


def _build(folder: Path) -> None:
    checkout = folder / "checkout"
    for name in copied():
        copy = shutil.copytree if (_ROOT / name).is_dir() else shutil.copy2
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        copy(_ROOT / name, checkout / name)
    with wheel_builder() as build:
        build(checkout, folder / "of_image", "HATCH_BUILD_NO_HOOKS")
        for name in ("first", "second"):
            build(_ROOT, folder / name)
    shutil.rmtree(checkout)


class WheelBuilder:
    """Builds wheels by processes of their own, in one environment. Packages that a build requires are those
    installed for the tests, if they fit: to install them anew takes most of the time of a build.
    """

    def __init__(self, environment: DefaultIsolatedEnv) -> None:
        self._environment = environment
        self._installed: set[str] = set()

    def __call__(self, source: Path, target: Path, *variables: str) -> Path:
        """Build the wheel of a folder with a pyproject.toml, with these variables of hatchling. Returns its path."""
        with tempfile.TemporaryDirectory() as packages:
            more = {"PYTHONPATH": packages, **dict.fromkeys(variables, "true")}

            def run(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
                quiet_subprocess_runner(cmd, cwd, {**(extra_environ or {}), **more})

            builder = ProjectBuilder.from_isolated_env(self._environment, source, run)
            self._install(builder.build_system_requires)
            self._install(_link_packages(builder.get_requires_for_build("wheel"), Path(packages)))
            return Path(builder.build("wheel", target))

    def _install(self, requirements: Set[str]) -> None:
        self._environment.install(requirements - self._installed)
        self._installed |= requirements


@contextlib.contextmanager
def wheel_builder() -> Iterator[WheelBuilder]:
    """An environment for builds, which ends with the context."""
    with DefaultIsolatedEnv() as environment:
        yield WheelBuilder(environment)


def _link_packages(requirements: Iterable[str], folder: Path) -> set[str]:
    """Fill a folder with links to the installed packages that are required, and to what these require. Returns the
    requirements that no installed package fits, as for another commit.
    """
    waiting, seen, unfit = list(map(Requirement, requirements)), set[str](), set[str]()
    for requirement in waiting:  # which grows: what packages require comes after what the build itself does
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        package = next(iter(Distribution.discover(name=name)), None)
        if package is None or package.version not in requirement.specifier:
            unfit.add(str(requirement))
            continue
        waiting += map(Requirement, package.requires or ())
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():  # packages may share a namespace
                (folder / top).symlink_to(Path(str(package.locate_file(top))))
    return unfit
