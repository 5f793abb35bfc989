# SPDX-License-Identifier: Apache-2.0
"""The wheels that tests install or read, built once for all workers of a run."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Final, NamedTuple

from build import ProjectBuilder
from build.env import DefaultIsolatedEnv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyproject_hooks import quiet_subprocess_runner

from .dockerfile import copied
from .preloaded import FOLDER_VARIABLE, locked

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
    folder = Path(os.environ[FOLDER_VARIABLE]) / "wheels"
    folders = [folder / name for name in ("first", "second", "image")]
    folder.mkdir(exist_ok=True)
    with locked(folder):
        if not (folder / "built").exists():
            _build(folders, folder)
            (folder / "built").touch()
    return Wheels(*(next(path.glob("*.whl")) for path in folders))


def _build(targets: Sequence[Path], folder: Path) -> None:
    """Build the wheels by processes of their own, in one environment with the build requirements."""
    packages, checkout = folder / "packages", folder / "checkout"
    packages.mkdir(exist_ok=True)
    for name in copied():
        copy = shutil.copytree if (_ROOT / name).is_dir() else shutil.copy2
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        copy(_ROOT / name, checkout / name)

    def run(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        quiet_subprocess_runner(cmd, cwd, {**(extra_environ or {}), "PYTHONPATH": str(packages)})

    def run_without_hook(
        cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        quiet_subprocess_runner(cmd, cwd, {**(extra_environ or {}), "HATCH_BUILD_NO_HOOKS": "true"})

    with DefaultIsolatedEnv() as environment:
        builder = ProjectBuilder.from_isolated_env(environment, _ROOT, run)
        environment.install(builder.build_system_requires)
        of_image = ProjectBuilder.from_isolated_env(environment, checkout, run_without_hook)
        of_image.build("wheel", targets[2])
        _link_packages(builder.get_requires_for_build("wheel"), packages)
        for target in targets[:2]:
            builder.build("wheel", target)
    shutil.rmtree(checkout)


def _link_packages(requirements: Iterable[str], folder: Path) -> None:
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
