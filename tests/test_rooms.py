# SPDX-License-Identifier: Apache-2.0
"""Which room may import which: the table of docs/architecture.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = {"", "command", "parsing"}  # the package itself and what the commands have in common
MAY_IMPORT = {
    "resource": set[str](),
    "cel": {"resource"},
    "allocation": {"resource", "cel"},
    "scheduling": {"resource", "cel", "allocation"},
    "gpu": {"resource", *SHARED},
    "config": {"resource", *SHARED},
    "cdi": set[str](),
    "cluster": {"resource", "parsing"},
    "dryrun": {"resource", "cel", "allocation", "scheduling", "gpu", "config", "cluster", *SHARED},
    "sandbox": {"resource", "cel", "allocation", "scheduling", "gpu", "config", "cdi", "cluster", "dryrun", *SHARED},
}

FOLDERS = (
    "protocol",
    "hardware",
    "steps",
    "plans",
    "records",
    "containers",
    "claims",
    "reports",
    "kubelet",
    "commands",
)
"""Of kubeletplugin, in the order of its docstring. What is in none of them may import all."""


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Absolute names of the modules and names that a file imports."""
    package = [*path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms_of(path: Path) -> set[str]:
    """The rooms of dra_driver that a file imports; "" for names of the package itself."""
    names = (name.split(".") for name in imported(path) if name.split(".")[0] == "dra_driver")
    return {parts[1] if len(parts) > 1 and parts[1] in {*MAY_IMPORT, *SHARED} else "" for parts in names}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_those_above_it(room: str) -> None:
    for path in files(f"dra_driver/{room}"):
        assert rooms_of(path) - {room} <= MAY_IMPORT[room], path
        assert not {name.split(".")[0] for name in imported(path)} & {"controller", "kubeletplugin", "tests"}, path


def test_controller_and_plugin_do_not_know_each_other_nor_what_is_not_for_nodes() -> None:
    for package, other in (("controller", "kubeletplugin"), ("kubeletplugin", "controller")):
        for path in files(package):
            assert other not in {name.split(".")[0] for name in imported(path)}, path
            assert not rooms_of(path) & {"dryrun", "sandbox", "cel", "allocation"}, path


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_the_plugin_imports_only_those_before_it(folder: str) -> None:
    for path in files(f"kubeletplugin/{folder}"):
        names = (name.split(".") for name in imported(path) if name.startswith("kubeletplugin."))
        found = {parts[1] for parts in names} & set(FOLDERS)
        assert found <= set(FOLDERS[: FOLDERS.index(folder) + 1]), path


def test_the_stand_in_kubelet_shares_nothing_but_the_vocabulary_with_the_driver() -> None:
    for path in files("dra_driver/sandbox/kubelet"):
        ours = {name for name in imported(path) if name.split(".")[0] in {"dra_driver", "kubeletplugin"}}
        assert all(name.startswith(("dra_driver.sandbox.kubelet", "dra_driver.resource")) for name in ours), path


@pytest.mark.parametrize("folder", ["dra_driver", "controller", "kubeletplugin", "tests"])
def test_every_file_names_its_licence(folder: str) -> None:
    generated = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
    for path in files(folder):
        if not path.name.endswith(generated):
            assert path.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: Apache-2.0\n"), path
