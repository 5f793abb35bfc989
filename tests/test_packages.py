# SPDX-License-Identifier: Apache-2.0
"""Which package may import which: the tables of docs/architecture.md."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The package itself, and the modules that the commands share
SHARED = {
    "",
    "command",
    "containment",
    "errors",
    "exposed",
    "files",
    "parsing",
    "programs",
}
MAY_IMPORT = {
    "resource": {"errors"},
    "cel": {"resource", "errors"},
    "allocation": {"resource", "cel", "errors"},
    "scheduling": {"resource", "cel", "allocation"},
    "gpu": {"resource", *SHARED},
    "config": {"resource", *SHARED},
    "cdi": {"errors", "files"},
    "mps": {"cdi", *SHARED},
    "kubeapi": {"resource", "containment", "errors", "parsing", "programs"},
    "computedomains": {"resource", "gpu", "config", "kubeapi", *SHARED},
    "imex": {"resource", "kubeapi", "computedomains", *SHARED},
    "dryrun": {"resource", "cel", "allocation", "scheduling", "gpu", "config", "kubeapi", "computedomains", *SHARED},
    "sandbox": {
        "resource",
        "cel",
        "allocation",
        "scheduling",
        "gpu",
        "config",
        "cdi",
        "mps",
        "kubeapi",
        "computedomains",
        "imex",
        "dryrun",
        *SHARED,
    },
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
    "limits",
    "computedomains",
    "commands",
)
"""The packages of kubeletplugin, the lowest layer first. Modules outside of these packages may import all of them."""

SANDBOX = (
    *("kubelet", "apiserver", "child", "processes", "loop", "claimwrites", "marked", "programs"),
    *(
        "claimcontroller",
        "scheduler",
        "workloads",
        "controlplane",
        "computedomains",
        "nodes",
        "environment",
        "demo",
        "main",
    ),
)
"""The packages and modules of dra_driver/sandbox, the lowest layer first."""
API_SERVER = (
    *("objects", "opaque", "field_errors", "names", "status", "release", "users", "schema", "kinds"),
    *("patches", "apply", "groups", "store", "listing", "catalog", "rbac", "verbs", "controllers"),
    *("discovery", "http", "server"),
)
"""The packages and modules of dra_driver/sandbox/apiserver, the lowest layer first."""
CEL_PACKAGES = ("errors", "types", "syntax", "check", "library", "evaluate")
"""The packages and modules of dra_driver.scheduler.cel, the lowest layer first. Its other modules may import all of
them.
"""


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


def packages_of(path: Path) -> set[str]:
    """The packages and modules of dra_driver that a file imports; "" for names of dra_driver itself."""
    names = (name.split(".") for name in imported(path) if name.split(".")[0] == "dra_driver")
    return {parts[1] if len(parts) > 1 and parts[1] in {*MAY_IMPORT, *SHARED} else "" for parts in names}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_lower_layers(package: str) -> None:
    for path in files(f"dra_driver/{package}"):
        assert packages_of(path) - {package} <= MAY_IMPORT[package], path
        assert not {name.split(".")[0] for name in imported(path)} & {"controller", "kubeletplugin", "tests"}, path


def test_controller_and_plugin_import_neither_each_other_nor_packages_that_are_not_for_nodes() -> None:
    for package, other in (("controller", "kubeletplugin"), ("kubeletplugin", "controller")):
        for path in files(package):
            assert other not in {name.split(".")[0] for name in imported(path)}, path
            assert not packages_of(path) & {"dryrun", "sandbox", "cel", "allocation"}, path


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_package_of_the_plugin_imports_only_lower_layers(folder: str) -> None:
    for path in files(f"kubeletplugin/{folder}"):
        names = (name.split(".") for name in imported(path) if name.startswith("kubeletplugin."))
        found = {parts[1] for parts in names} & set(FOLDERS)
        assert found <= set(FOLDERS[: FOLDERS.index(folder) + 1]), path


@pytest.mark.parametrize(
    ("folder", "order"), [("dra_driver/sandbox", SANDBOX), ("dra_driver/sandbox/apiserver", API_SERVER)]
)
def test_a_part_of_the_sandbox_imports_only_lower_layers(folder: str, order: tuple[str, ...]) -> None:
    package = folder.replace("/", ".") + "."
    for path in files(folder):
        part = path.relative_to(ROOT / folder).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        below = order[: order.index(part) + 1]
        names = (name.removeprefix(package).split(".")[0] for name in imported(path) if name.startswith(package))
        assert {name for name in names if name in order} <= set(below), path


def test_every_part_of_the_sandbox_has_a_layer() -> None:
    for folder, order in (("dra_driver/sandbox", SANDBOX), ("dra_driver/sandbox/apiserver", API_SERVER)):
        there = {path.relative_to(ROOT / folder).parts[0].removesuffix(".py") for path in files(folder)}
        assert there - {"__init__"} == set(order)


@pytest.mark.parametrize("package", CEL_PACKAGES)
def test_a_package_of_cel_imports_only_lower_layers(package: str) -> None:
    allowed = CEL_PACKAGES[: CEL_PACKAGES.index(package) + 1]
    found = [
        path for path in files("dra_driver/scheduler/cel") if path.relative_to(ROOT).with_suffix("").parts[2] == package
    ]
    assert found
    for path in found:
        names = [name.split(".") for name in imported(path) if name.startswith("dra_driver.scheduler.cel")]
        assert all(len(parts) > 2 and parts[2] in allowed for parts in names), path


@pytest.mark.parametrize("folder", ["dra_driver/scheduler/cel", "dra_driver/sandbox"])
def test_no_module_imports_itself_through_other_modules(folder: str) -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files(folder)
    }
    imports = {
        module: {known for name in imported(path) if (known := _module(name, modules)) in modules}
        for module, path in modules.items()
    }
    while leaves := {module for module, needed in imports.items() if not needed & imports.keys()}:
        imports = {module: needed for module, needed in imports.items() if module not in leaves}
    assert imports == {}


def _module(name: str, modules: Iterable[str]) -> str:
    """The module of an imported name, which may be the module itself."""
    return name if name in modules else name.rpartition(".")[0]


def test_the_sandbox_kubelet_shares_only_the_resource_types_with_the_driver() -> None:
    for path in files("dra_driver/sandbox/kubelet"):
        ours = {name for name in imported(path) if name.split(".")[0] in {"dra_driver", "kubeletplugin"}}
        assert all(name.startswith(("dra_driver.sandbox.kubelet", "dra_driver.kube.resource")) for name in ours), path


@pytest.mark.parametrize("folder", ["dra_driver", "controller", "kubeletplugin", "tests"])
def test_every_file_names_its_licence(folder: str) -> None:
    generated = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
    for path in files(folder):
        if not path.name.endswith(generated):
            assert path.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: Apache-2.0\n"), path
