# SPDX-License-Identifier: Apache-2.0
"""The image: what its Dockerfile says, that its lock file is right, and that it runs where nothing can be written."""

import ast
import functools
import hashlib
import importlib.metadata
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dra_driver.dryrun import main as dryrun
from dra_driver.gpu.memory_limits import HOOK_PROGRAM
from dra_driver.process.command import Extra
from dra_driver.sandbox import main as sandbox

from .support.dockerfile import DOCKERFILE, copied, instructions, stages
from .support.wheels import built_wheels

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BASE = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
OURS = ("dra_driver", "controller", "kubeletplugin")
LOCKED = ("--no-compile", "--only-binary=:all:", "--require-hashes", "--requirement")
NEED_AN_EXTRA = {"dra-dryrun": "dryrun", "kubectl-dra_dryrun": "dryrun", "dra-sandbox": "sandbox"}
_PT_INTERP = 3  # elf(5): the path of the loader, which a static program does not have
NO_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def segment_types(program: bytes) -> set[int]:
    """The types of the segments of a 64-bit ELF file."""
    start, size, count = struct.unpack_from("<Q14xHH", program, 32)
    return {struct.unpack_from("<I", program, start + number * size)[0] for number in range(count)}


def pins(file: str) -> dict[str, tuple[Version, int]]:
    """Version and number of hashes of each package in a lock file."""
    blocks = re.findall(r"^(\S+)==(\S+) \\\n((?: +--hash=\S+(?: \\)?\n)+)", (ROOT / file).read_text(), re.MULTILINE)
    return {canonicalize_name(name): (Version(version), hashes.count("sha256:")) for name, version, hashes in blocks}


def names(requirements: Iterable[Requirement]) -> set[str]:
    """Their packages, in the form that compares."""
    return {canonicalize_name(one.name) for one in requirements}


# What the Dockerfile says


def test_the_image_is_built_on_the_base_that_it_runs_on() -> None:
    hook, build, last = stages()
    assert hook[0] == ("FROM", "${GCC_IMAGE} AS hook")
    assert build[0] == ("FROM", "${PYTHON_IMAGE} AS build")
    assert last[0] == ("FROM", "${PYTHON_IMAGE}")
    base, compiler, *_ = (arguments for name, arguments in instructions() if name == "ARG")
    assert re.fullmatch(r"PYTHON_IMAGE=docker\.io/library/python:3\.\d+-slim-\w+", base)
    assert re.fullmatch(r"GCC_IMAGE=docker\.io/library/gcc:\d+-\w+", compiler)


def test_the_hook_program_is_compiled_and_is_where_the_driver_looks_for_it(tmp_path: Path) -> None:
    (source,) = (arguments.split()[0] for name, arguments in stages()[0] if name == "COPY")
    (command,) = (arguments for name, arguments in stages()[0] if name == "RUN")
    (copied_to,) = (arguments.split()[-1] for _, arguments in stages()[1] if arguments.startswith("--from=hook "))
    assert Path(copied_to).relative_to("/opt/dra") == HOOK_PROGRAM.relative_to(sys.prefix)
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on PATH to compile the hook program")
    shutil.copy(ROOT / source, tmp_path)
    done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    program = tmp_path / Path(copied_to).name
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "usage: dra-memory-limits SOCKET" in done.stderr
    assert _PT_INTERP not in segment_types(program.read_bytes())


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


def test_no_package_is_installed_without_a_hash_or_compiled() -> None:
    environment = " ".join(arguments for name, arguments in stages()[1] if name == "ENV")
    assert "PIP_ONLY_BINARY=:all:" in environment
    commands = [part.strip() for name, arguments in instructions() if name == "RUN" for part in arguments.split("&&")]
    installs = [command for command in commands if re.search(r"\bpip\b.* (install|wheel) ", command)]
    assert len(installs) == 4
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    installing = "\n".join(f"{name} {arguments}" for stage in stages()[1:] for name, arguments in stage)
    assert not re.search(r"\b(apt-get|apk|gcc|curl|wget|git)\b|^ADD ", installing, re.MULTILINE)


def test_everything_that_is_copied_is_there_and_reaches_the_engine() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(copied()) == sorted(allowed)
    for path in copied():
        assert (ROOT / path).exists(), path


@pytest.mark.skipif(shutil.which("hadolint", path=str(Path(sys.executable).parent)) is None, reason="no hadolint here")
def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# What the lock file says


def test_every_base_dependency_is_locked_within_its_range() -> None:
    locked = pins("requirements.lock")
    for one in BASE:
        assert locked[canonicalize_name(one.name)][0] in one.specifier, f"{one.name}: run make lock"


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


def statements(module: ast.Module) -> Iterator[ast.stmt]:
    """All statements of a module but those that are there for the type checker only."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.stmt):
            yield node
        # No expression contains a statement.
        waiting += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))


@functools.cache
def source(module: str) -> Path | None:
    """The file of one of our modules."""
    path = ROOT.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules that one of ours imports, at any time; a name that it imports from a module may look like another."""
    return frozenset(_imports(module))


def _imports(module: str) -> Iterator[str]:
    path = source(module)
    assert path is not None, module
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (start, *(f"{start}.{alias.name}" for alias in node.names))


def modules_of(*folders: str) -> list[str]:
    """All modules below these folders."""
    files = (path.relative_to(ROOT).with_suffix("") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [".".join(file.parts).removesuffix(".__init__") for file in files]


def reached(entries: Iterable[str]) -> tuple[set[str], set[str]]:
    """Our modules that a process can come to import from `entries` on, and the packages of others that they import."""
    ours, others = set[str](), set[str]()
    waiting = list(entries)
    while waiting:
        module = waiting.pop()
        if module.split(".")[0] not in OURS:
            others.add(module.split(".")[0])
        elif module not in ours and source(module):
            ours.add(module)
            waiting += [module.rpartition(".")[0], *imported(module)] if "." in module else imported(module)
    return ours, others - sys.stdlib_module_names


def node_modules() -> set[str]:
    """Our modules that the processes of a node or of the cluster can import."""
    ours, _ = reached(modules_of("controller", "kubeletplugin"))
    return ours


def importing(modules: Iterable[str]) -> str:
    """A program that imports these modules."""
    return f"import importlib\nfor module in {sorted(modules)!r}: importlib.import_module(module)"


def distributions(modules: Iterable[str]) -> set[str]:
    """The packages that bring these modules."""
    known = packages_of_modules()
    return {canonicalize_name(known[module][0]) for module in modules}


@functools.cache
def packages_of_modules() -> Mapping[str, list[str]]:
    """The installed packages of each module. Finding them reads the lists of all installed files."""
    return importlib.metadata.packages_distributions()


def test_node_processes_import_the_base_dependencies_and_no_others() -> None:
    ours, others = reached(modules_of("controller", "kubeletplugin"))
    assert distributions(others) == names(BASE)
    packages = {".".join(module.split(".")[:2]) for module in ours}
    assert not packages & {f"dra_driver.{name}" for name in ("dryrun", "sandbox", "scheduler")}


@pytest.mark.parametrize("extra", [dryrun.EXTRA, sandbox.EXTRA], ids=lambda extra: str(extra.name))
def test_a_command_needs_what_its_extra_brings_beside_the_base(extra: Extra) -> None:
    found = set(map(Requirement, EXTRAS[extra.name]))
    found |= {Requirement(text) for one in found for name in one.extras for text in EXTRAS[name]}
    assert distributions(extra.modules) == names(found) - {"dra-driver-gpu"}
    _, others = reached(modules_of(f"dra_driver/{extra.name}"))
    assert distributions(others) <= names(BASE) | distributions(extra.modules)


def test_the_extra_all_is_all_of_them() -> None:
    (one,) = map(Requirement, EXTRAS["all"])
    assert (one.name, one.extras) == (PROJECT["project"]["name"], EXTRAS.keys() - {"all"})


# That it runs


class Image(NamedTuple):
    """What the image has in /opt/dra. Nobody can write to it."""

    folder: Path
    imports: "subprocess.CompletedProcess[str]"
    """A process that imports all modules of node processes. Its bytecode is that of all tests."""


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image's packages, installed by pip with the hashes of the lock file. The Dockerfile does it in two steps."""
    folder = Path(tempfile.mkdtemp(prefix="dra-image-"))
    target = folder / "dra"
    own = target / "bin/python3"
    wheel = built_wheels().of_image
    ours = folder / "ours.txt"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(own)]
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(target)], check=True, timeout=240)
        ours.write_text(f"{wheel} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n", encoding="utf-8")
        command = [*pip, "install", *LOCKED, str(ROOT / "requirements.lock"), "--requirement", str(ours)]
        subprocess.run(command, check=True, timeout=240)
        program = importing({*node_modules(), "dra_driver.sandbox.main"})
        imports = subprocess.run(
            [str(own), "-I", "-c", program], capture_output=True, text=True, timeout=120, check=False
        )
        for path in (target, *target.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)
        yield Image(target, imports)
    finally:
        for path in (target, *target.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def installed(image: Image) -> Path:
    """The image's folder."""
    return image.folder


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
def test_wheel_marks_packages_as_typed(installed: Path) -> None:
    marked = {path.parent.name for path in installed.glob("lib/python3*/site-packages/*/py.typed")}
    assert set(OURS) - marked == set()


@pytest.mark.timeout(600)
def test_imports_of_node_processes_need_only_the_locked_packages(image: Image) -> None:
    assert "dra_driver.gpu.nvml_library" in node_modules()
    assert (image.imports.returncode, image.imports.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        ("dra-dryrun", "--help"),
        ("kubectl-dra_dryrun", "claim.yaml"),
        ("dra-sandbox", "--help"),
        ("dra-sandbox", "demo"),
    ],
)
def test_a_command_whose_extra_is_missing_says_what_to_install(installed: Path, command: str, argument: str) -> None:
    done = run(installed, command, argument)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    program = "kubectl dra-dryrun" if command == "kubectl-dra_dryrun" else command
    assert line.startswith(f"{program}: modules ")
    assert line.endswith(f" are not installed: pip install 'dra-driver-gpu[{NEED_AN_EXTRA[command]}]'")


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
