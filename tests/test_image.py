# SPDX-License-Identifier: Apache-2.0
"""The image: what its Dockerfile says, that its lock file is right, and that it runs where nothing can be written."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LEFT_OUT = ("allocation", "cel", "dryrun", "sandbox", "scheduling")
OURS = ("dra_driver", "controller", "kubeletplugin")
LOCKED = ("--no-compile", "--only-binary=:all:", "--require-hashes", "--requirement")
NO_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, continued lines joined."""
    text = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    found = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name, arguments) for name, arguments in found]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage."""
    found: list[list[tuple[str, str]]] = []
    for name, arguments in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, arguments))
    return found


def pins(file: str) -> dict[str, tuple[Version, int]]:
    """Version and number of hashes of each package in a lock file."""
    blocks = re.findall(r"^(\S+)==(\S+) \\\n((?: +--hash=\S+(?: \\)?\n)+)", (ROOT / file).read_text(), re.MULTILINE)
    return {canonicalize_name(name): (Version(version), hashes.count("sha256:")) for name, version, hashes in blocks}


def wanted() -> list[str]:
    """The names in requirements.in."""
    lines = (ROOT / "requirements.in").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


# What the Dockerfile says


def test_the_image_is_made_in_two_stages_of_one_base() -> None:
    first, last = stages()
    assert first[0] == ("FROM", "${PYTHON_IMAGE} AS build")
    assert last[0] == ("FROM", "${PYTHON_IMAGE}")
    base = next(arguments for name, arguments in instructions() if name == "ARG")
    assert re.fullmatch(r"PYTHON_IMAGE=docker\.io/library/python:3\.\d+-slim-\w+", base)


def test_the_base_has_a_python_that_the_project_supports() -> None:
    version = re.search(r"python:(3\.\d+)-", DOCKERFILE)
    assert version
    assert Version(version[1]) in Requirement(f"x{PROJECT['project']['requires-python']}").specifier


def test_the_last_stage_is_not_root_and_leaves_the_command_to_the_pod() -> None:
    last = stages()[-1]
    users = [arguments for name, arguments in last if name == "USER"]
    assert users == ["65532:65532"]
    assert "ENTRYPOINT" not in [name for name, _ in last]
    assert [arguments for name, arguments in last if name == "COPY"] == ["--from=build /opt/dra /opt/dra"]


def test_nothing_is_installed_without_a_hash_or_compiled() -> None:
    environment = " ".join(arguments for name, arguments in stages()[0] if name == "ENV")
    assert "PIP_ONLY_BINARY=:all:" in environment
    commands = [part.strip() for name, arguments in instructions() if name == "RUN" for part in arguments.split("&&")]
    installs = [command for command in commands if re.search(r"\bpip\b.* (install|wheel) ", command)]
    assert len(installs) == 4
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    assert not re.search(r"\b(apt-get|apk|gcc|curl|wget|git)\b|^ADD ", DOCKERFILE, re.MULTILINE)


def test_everything_that_is_copied_is_there_and_reaches_the_engine() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        path
        for name, arguments in stages()[0]
        if name == "COPY"
        for path in arguments.split()[:-1]
        if not path.startswith("--")
    ]
    assert sorted(copied) == sorted(allowed)
    for path in copied:
        assert (ROOT / path).exists(), path


def test_what_is_taken_out_is_what_nodes_do_not_run() -> None:
    removed = re.findall(r"site-packages/dra_driver/(\w+)", DOCKERFILE)
    assert tuple(removed) == LEFT_OUT
    scripts = set(re.findall(r"/opt/dra/bin/((?:dra|kubectl)-\S+)", DOCKERFILE))
    entries: dict[str, str] = PROJECT["project"]["scripts"]
    rooms = tuple(f"dra_driver.{name}." for name in LEFT_OUT)
    assert scripts == {name for name, entry in entries.items() if entry.startswith(rooms)}


@pytest.mark.skipif(shutil.which("hadolint", path=str(Path(sys.executable).parent)) is None, reason="no hadolint here")
def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# What the lock file says


def test_every_requirement_is_locked_within_the_projects_range() -> None:
    ranges = {canonicalize_name(one.name): one for one in map(Requirement, PROJECT["project"]["dependencies"])}
    locked = pins("requirements.lock")
    for name in map(canonicalize_name, wanted()):
        assert name in ranges, f"{name} is in requirements.in and not in pyproject.toml"
        assert locked[name][0] in ranges[name].specifier, f"{name}: run make lock"


def test_the_build_backend_is_locked_within_the_projects_range() -> None:
    locked = pins("requirements-build.lock")
    for one in map(Requirement, PROJECT["build-system"]["requires"]):
        assert locked[canonicalize_name(one.name)][0] in one.specifier


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-build.lock"])
def test_every_package_is_locked_by_version_and_hashes(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    locked = pins(file)
    assert len(locked) == len([line for line in text.splitlines() if line and line[0] not in " #"])
    assert all(hashes >= 1 for _, hashes in locked.values())


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node but what is there for the type checker only."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from at_run_time(child)


def imported() -> Iterator[tuple[Path, str]]:
    """(file, top-level package) of every import in what the image keeps."""
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            if path.relative_to(ROOT).parts[1] in LEFT_OUT:
                continue
            for node in at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    yield from ((path, alias.name.split(".")[0]) for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    yield path, node.module.split(".")[0]


def test_the_image_has_what_it_imports_and_nothing_that_it_does_not() -> None:
    distributions = importlib.metadata.packages_distributions()
    used = set()
    for path, package in imported():
        if package in sys.stdlib_module_names or package in OURS:
            continue
        names = {canonicalize_name(name) for name in distributions[package]}
        assert names & {canonicalize_name(name) for name in wanted()}, f"{path} imports {package}, see requirements.in"
        used |= names
    assert used >= {canonicalize_name(name) for name in wanted()}


# That it runs


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """What the image has in /opt/dra, installed as the Dockerfile does it, and not to be written by anybody."""
    folder = Path(tempfile.mkdtemp(prefix="dra-image-"))
    target = folder / "dra"
    own = target / "bin/python3"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    try:
        for command in (
            [sys.executable, "-m", "venv", "--without-pip", str(target)],
            [*pip, "--python", str(own), "install", *LOCKED, str(ROOT / "requirements.lock")],
            [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        ):
            subprocess.run(command, check=True, timeout=240)
        (wheel,) = folder.glob("*.whl")
        subprocess.run(
            [*pip, "--python", str(own), "install", "--no-compile", "--no-deps", "--no-index", str(wheel)],
            check=True,
            timeout=60,
        )
        (packages,) = target.glob("lib/python3*/site-packages")
        for name in LEFT_OUT:
            shutil.rmtree(packages / "dra_driver" / name)
        compile_all = [str(own), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(packages)]
        subprocess.run(compile_all, check=True, timeout=120)
        for path in (target, *target.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)
        yield target
    finally:
        for path in (target, *target.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)


def run(installed: Path, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the image as somebody without privileges, in a folder that cannot be written to."""
    return subprocess.run(
        [*(NO_PRIVILEGES if os.geteuid() == 0 else ()), str(installed / "bin" / command[0]), *command[1:]],
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1", **environment},
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def contents(installed: Path) -> set[PurePosixPath]:
    return {PurePosixPath(path) for path in installed.rglob("*")}


@pytest.mark.timeout(600)
def test_every_module_can_be_imported_with_the_locked_packages_only(installed: Path) -> None:
    program = (
        "import importlib, pkgutil\n"
        f"for package in map(importlib.import_module, {OURS!r}):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
        "        print(found.name)\n"
    )
    done = run(installed, "python3", "-I", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    modules = set(done.stdout.split())
    assert {
        "controller.main",
        "kubeletplugin.main",
        "kubeletplugin.check.command",
        "dra_driver.gpu.nvml_library",
    } <= modules
    assert not [name for name in modules if name.split(".")[1] in LEFT_OUT]


def test_the_commands_run_where_nothing_can_be_written(installed: Path, tmp_path: Path) -> None:
    before = contents(installed)
    refused = run(installed, "python3", "-c", "open('x', 'w')")
    assert "PermissionError" in refused.stderr  # so the folder is as it should be
    for command in ("dra-controller", "dra-kubeletplugin"):
        done = run(installed, command, "--version")
        assert (done.stdout.split()[0], done.returncode, done.stderr) == (command, 0, "")
    arguments = ("check", "--simulated-node", "h100x8", "--simulated-root", str(tmp_path / "gpus"), "--node-name", "a")
    done = run(installed, "dra-kubeletplugin", *arguments)
    assert "PASS  gpus: 8 x NVIDIA H100 80GB HBM3\n" in done.stdout, done.stderr
    assert contents(installed) == before
