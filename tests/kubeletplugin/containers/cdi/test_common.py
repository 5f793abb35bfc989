# SPDX-License-Identifier: Apache-2.0
"""What every container with a GPU gets: the driver, found below its root."""

from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import (
    BASE_DEVICE,
    BASE_KIND,
    ContainerEdits,
    DriverFilesError,
    DriverRoot,
    HookTool,
    Mount,
    Root,
    SpecDirectory,
    base_spec,
    common_edits,
    find_hook_tool,
)
from kubeletplugin.containers.cdi.spec import DeviceNode, validate
from tests.support.nodes import driver_root_of

from .trees import MAJORS, SONAMES, VERSION, Terminal, file, kernel, libraries, link, program

FOLDER = "/usr/lib/x86_64-linux-gnu"
HOOK = HookTool("/usr/bin/nvidia-cdi-hook")


@pytest.fixture
def root(tmp_path: Path) -> DriverRoot:
    """A driver container's root with CUDA libraries, seen by the runtime at /run/nvidia/driver."""
    libraries(tmp_path, FOLDER)
    kernel(tmp_path, MAJORS)
    return driver_root_of(tmp_path, "/run/nvidia/driver")


def mounts(edits: ContainerEdits) -> dict[str, str]:
    """Host path by container path."""
    found = {mount.container_path: mount.host_path for mount in edits.mounts}
    assert len(found) == len(edits.mounts), "no place in the container is mounted twice"
    return found


def test_libraries_are_mounted_read_only_from_the_path_that_the_runtime_sees(root: DriverRoot) -> None:
    edits = common_edits(root, VERSION, HOOK).edits
    assert mounts(edits) == {
        f"{FOLDER}/{name}.{VERSION}": f"/run/nvidia/driver{FOLDER}/{name}.{VERSION}" for name in SONAMES
    }
    assert {mount.options for mount in edits.mounts} == {("ro", "nosuid", "nodev", "rbind", "rprivate")}
    assert edits.env == (f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}",)


@pytest.mark.parametrize(
    ("missing", "env"),
    [
        ("", ("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu:/usr/lib64",)),
        ("libcuda.so", ("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu:/usr/lib64",)),
        ("libcuda.so libnvidia-ml.so", ()),
    ],
)
def test_the_containers_environment_names_the_folder_of_libcuda_or_else_of_nvml_first(
    root: DriverRoot, missing: str, env: tuple[str, ...]
) -> None:
    file(root.files.path, f"/usr/lib64/libnvidia-fbc.so.{VERSION}")  # a folder more, searched before
    for name in missing.split():
        root.files.here(f"{FOLDER}/{name}.{VERSION}").unlink()
    assert common_edits(root, VERSION, HOOK).edits.env == env


def test_programs_configuration_and_firmware_are_mounted_where_images_look_for_them(root: DriverRoot) -> None:
    tree = root.files.path
    program(tree, "/usr/bin/nvidia-smi")
    program(tree, "/usr/sbin/nvidia-imex")
    program(tree, "/usr/lib/nvidia/current/nvidia-debugdump")
    link(tree, "/usr/bin/nvidia-debugdump", "/etc/alternatives/debugdump")
    link(tree, "/etc/alternatives/debugdump", "/usr/lib/nvidia/current/nvidia-debugdump")
    file(tree, "/usr/bin/nvidia-persistenced", mode=0o644)  # not executable
    program(tree, "/usr/bin/nvidia-settings")  # not for containers
    file(tree, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    file(tree, "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")
    file(tree, "/etc/OpenCL/vendors/nvidia.icd")
    file(tree, f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    file(tree, "/lib/firmware/nvidia/570.00.01/gsp_ga10x.bin")
    file(tree, f"/lib/firmware/updates/6.1.0/nvidia/{VERSION}/gsp_tu10x.bin")
    found = mounts(common_edits(root, VERSION, HOOK, machine="x86_64", kernel_release="6.1.0").edits)
    assert {path: source for path, source in found.items() if ".so." not in path} == {
        "/usr/bin/nvidia-smi": "/run/nvidia/driver/usr/bin/nvidia-smi",
        "/usr/sbin/nvidia-imex": "/run/nvidia/driver/usr/sbin/nvidia-imex",
        "/usr/bin/nvidia-debugdump": "/run/nvidia/driver/usr/lib/nvidia/current/nvidia-debugdump",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": (
            "/run/nvidia/driver/usr/share/glvnd/egl_vendor.d/10_nvidia.json"
        ),
        "/etc/vulkan/icd.d/nvidia_icd.x86_64.json": (
            "/run/nvidia/driver/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json"
        ),
        "/etc/OpenCL/vendors/nvidia.icd": "/run/nvidia/driver/etc/OpenCL/vendors/nvidia.icd",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin": (
            f"/run/nvidia/driver/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
        ),
        f"/lib/firmware/updates/6.1.0/nvidia/{VERSION}/gsp_tu10x.bin": (
            f"/run/nvidia/driver/lib/firmware/updates/6.1.0/nvidia/{VERSION}/gsp_tu10x.bin"
        ),
    }


@pytest.mark.parametrize(
    ("places", "source"),
    [
        (["/vulkan"], "/vulkan"),  # as GKE installs the driver
        (["/vulkan", "/usr/share/vulkan"], "/usr/share/vulkan"),
        (["/vulkan", "/usr/share/vulkan", "/usr/local/share/vulkan"], "/usr/local/share/vulkan"),
        (["/vulkan", "/usr/share/vulkan", "/usr/local/share/vulkan", "/etc/vulkan"], "/etc/vulkan"),
    ],
)
@pytest.mark.parametrize(
    "name",
    ["icd.d/nvidia_icd.json", "icd.d/nvidia_layers.json", "implicit_layer.d/nvidia_layers.json"],
)
def test_vulkan_finds_its_driver_below_etc_wherever_the_node_has_it(
    root: DriverRoot, name: str, places: list[str], source: str
) -> None:
    for place in places:
        file(root.files.path, f"{place}/{name}")
    found = mounts(common_edits(root, VERSION, HOOK).edits)
    assert {path: place for path, place in found.items() if "vulkan" in path} == {
        f"/etc/vulkan/{name}": f"/run/nvidia/driver{source}/{name}"
    }


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_container_gets_the_vulkan_file_of_its_machine(root: DriverRoot, machine: str) -> None:
    for each in ("x86_64", "aarch64"):
        file(root.files.path, f"/usr/share/vulkan/icd.d/nvidia_icd.{each}.json")
    found = mounts(common_edits(root, VERSION, HOOK, machine=machine).edits)
    assert [path for path in found if "vulkan" in path] == [f"/etc/vulkan/icd.d/nvidia_icd.{machine}.json"]


@pytest.mark.parametrize(
    ("custom", "folders"),
    [
        ("/opt/firmware/\n", ["/opt/firmware", "/lib/firmware"]),
        ("/lib/firmware\n", ["/lib/firmware"]),
        ("\n", ["/lib/firmware"]),
        ("firmware\n", ["/lib/firmware"]),  # the kernel takes it, a container cannot
    ],
)
def test_firmware_is_looked_for_where_the_kernel_was_told_to(root: DriverRoot, custom: str, folders: list[str]) -> None:
    file(root.sys, "/module/firmware_class/parameters/path", custom)
    for folder in ("/opt/firmware", "/lib/firmware"):
        file(root.files.path, f"{folder}/nvidia/{VERSION}/gsp_ga10x.bin")
    found = mounts(common_edits(root, VERSION, HOOK).edits)
    assert [path for path in found if "gsp" in path] == [
        f"{folder}/nvidia/{VERSION}/gsp_ga10x.bin" for folder in folders
    ]


@pytest.mark.parametrize(
    "place", ["/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps/control"]
)
def test_daemons_can_be_talked_to_while_they_run(root: DriverRoot, place: str) -> None:
    link(root.files.path, "/var/run", "/run")
    before = common_edits(root, VERSION, HOOK).edits.mounts
    file(root.files.path, place)
    (found,) = (mount for mount in common_edits(root, VERSION, HOOK).edits.mounts if mount not in before)
    path = place.removesuffix("/control")  # of MPS the whole folder, with its sockets and pipes
    assert found == Mount(f"/run/nvidia/driver{path}", path, ("nosuid", "nodev", "noexec", "rbind", "rprivate"))


def test_control_nodes_have_the_numbers_of_the_nodes_that_are_there(root: DriverRoot) -> None:
    # /dev/null stands in for a node that only root could make
    link(root.dev.path, "/dev/nvidiactl", "/dev/null")
    nodes = common_edits(root, VERSION, HOOK).edits.device_nodes
    assert nodes[0] == DeviceNode(
        "/dev/nvidiactl",
        "/run/nvidia/driver/dev/nvidiactl",
        "c",
        major=1,
        minor=3,
        file_mode=0o666,
        permissions="rw",
    )


def test_control_nodes_that_only_a_group_may_open_bring_the_group(root: DriverRoot, terminal: Terminal) -> None:
    link(root.dev.path, "/dev/nvidiactl", terminal.path)
    edits = common_edits(root, VERSION, HOOK).edits
    assert (edits.device_nodes[0].file_mode, edits.device_nodes[0].gid) == (0o660, terminal.gid)
    assert edits.additional_gids == (terminal.gid,)


def test_control_nodes_that_nobody_made_yet_have_the_numbers_that_the_kernel_registered(root: DriverRoot) -> None:
    found = common_edits(root, VERSION, HOOK)
    assert found.warnings == ()
    assert found.edits.device_nodes == (
        DeviceNode("/dev/nvidiactl", type="c", major=195, minor=255, permissions="rw"),
        DeviceNode("/dev/nvidia-uvm", type="c", major=510, minor=0, permissions="rw"),
        DeviceNode("/dev/nvidia-uvm-tools", type="c", major=510, minor=1, permissions="rw"),
    )


def test_a_simulated_node_that_is_a_plain_file_is_taken_and_reported(root: DriverRoot) -> None:
    file(root.dev.path, "/dev/nvidia-modeset")
    found = common_edits(root, VERSION, HOOK)
    assert found.edits.device_nodes[-1] == DeviceNode(
        "/dev/nvidia-modeset", "/run/nvidia/driver/dev/nvidia-modeset", permissions="rw"
    )
    assert found.warnings == (f"{root.dev.path}/dev/nvidia-modeset is not a character device",)


def test_nodes_without_which_nothing_works_are_missed_aloud(tmp_path: Path) -> None:
    libraries(tmp_path, FOLDER)
    found = common_edits(driver_root_of(tmp_path), VERSION, HOOK)
    assert found.edits.device_nodes == ()
    assert found.warnings == (
        "/dev/nvidiactl is missing and its kernel module not loaded: no program can use a GPU",
        "/dev/nvidia-uvm is missing and its kernel module not loaded: CUDA programs cannot start",
    )


def test_a_driver_without_libcuda_is_missed_aloud(root: DriverRoot) -> None:
    root.files.here(f"{FOLDER}/libcuda.so.{VERSION}").unlink()
    (warning,) = common_edits(root, VERSION, HOOK).warnings
    assert warning == f"libcuda.so.{VERSION} is not below {root.files.path}: CUDA programs cannot start"


def test_a_driver_of_another_version_is_an_error(root: DriverRoot) -> None:
    with pytest.raises(DriverFilesError, match=r"no library of NVIDIA driver 570\.00\.01"):
        common_edits(root, "570.00.01", HOOK)


@pytest.mark.parametrize(
    ("path", "program"),
    [
        ("/opt/nvidia-cdi-hook", ("nvidia-cdi-hook",)),
        ("/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook")),
    ],
)
def test_hooks_make_links_then_refresh_the_loaders_cache(root: DriverRoot, path: str, program: tuple[str, ...]) -> None:
    hooks = common_edits(root, VERSION, HookTool(path)).edits.hooks
    assert {(hook.hook_name, hook.path, hook.env) for hook in hooks} == {
        ("createContainer", path, ("NVIDIA_CTK_DEBUG=false",))
    }
    create, *others = hooks
    assert create.args[: len(program) + 3] == (
        *program,
        "create-symlinks",
        "--link",
        f"libcuda.so.1::{FOLDER}/libcuda.so",
    )
    assert create.args.count("--link") == 2 * len(SONAMES)
    assert [hook.args for hook in others] == [
        (*program, "enable-cuda-compat", f"--host-driver-version={VERSION}"),
        (*program, "update-ldcache", "--folder", FOLDER),
        (*program, "disable-device-node-modification"),
        (*program, "update-application-profile"),
    ]


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        ([], None),
        (["/usr/bin/nvidia-ctk"], "/host/usr/bin/nvidia-ctk"),
        (["/usr/bin/nvidia-cdi-hook"], "/host/usr/bin/nvidia-cdi-hook"),
        (
            ["/usr/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"],
            "/host/usr/local/nvidia/toolkit/nvidia-cdi-hook",
        ),
    ],
)
def test_the_hook_program_is_found_as_the_runtime_sees_it(
    tmp_path: Path, installed: list[str], found: str | None
) -> None:
    for path in installed:
        program(tmp_path, path)
    assert find_hook_tool(Root(tmp_path, "/host")) == (HookTool(found) if found else None)


def test_without_a_hook_program_every_name_of_a_library_is_mounted_where_any_glibc_looks(root: DriverRoot) -> None:
    found = common_edits(root, VERSION, None, machine="x86_64")
    assert found.edits.hooks == ()
    assert "no nvidia-cdi-hook or nvidia-ctk" in found.warnings[0]
    names = {file: f"{name}.{VERSION}" for name in SONAMES for file in (name, SONAMES[name], f"{name}.{VERSION}")}
    assert mounts(found.edits) == {
        f"{folder}/{name}": f"/run/nvidia/driver{FOLDER}/{source}"
        for folder in (FOLDER, "/usr/lib64")
        for name, source in names.items()
    }


def test_without_a_hook_program_the_places_follow_the_machine(tmp_path: Path) -> None:
    libraries(tmp_path, "/usr/lib64")
    edits = common_edits(driver_root_of(tmp_path), VERSION, None, machine="aarch64").edits
    assert mounts(edits)["/usr/lib/aarch64-linux-gnu/libcuda.so.1"] == f"/usr/lib64/libcuda.so.{VERSION}"


@pytest.mark.parametrize(
    ("in_driver_root", "on_host", "found"),
    [
        ([], ["/usr/local/nvidia/toolkit/nvidia-cdi-hook"], "/usr/local/nvidia/toolkit/nvidia-cdi-hook"),
        ([], ["/usr/local/nvidia/toolkit/nvidia-ctk"], "/usr/local/nvidia/toolkit/nvidia-ctk"),
        (
            ["/usr/bin/nvidia-ctk"],
            ["/usr/local/nvidia/toolkit/nvidia-cdi-hook"],
            "/run/nvidia/driver/usr/bin/nvidia-ctk",
        ),
        ([], [], None),
    ],
)
def test_with_the_driver_in_a_container_the_hosts_own_hook_program_serves(
    tmp_path: Path, in_driver_root: list[str], on_host: list[str], found: str | None
) -> None:
    driver, host = tmp_path / "driver", tmp_path / "host"
    for tree, paths in ((driver, in_driver_root), (host, on_host)):
        for path in paths:
            program(tree, path)
    tool = find_hook_tool(Root(driver, "/run/nvidia/driver"), Root(host))
    assert tool == (HookTool(found) if found else None)


@pytest.mark.parametrize("hook", [None, HOOK])
def test_the_base_spec_is_valid_and_serves_one_device(tmp_path: Path, root: DriverRoot, hook: HookTool | None) -> None:
    spec = base_spec(common_edits(root, VERSION, hook).edits)
    assert validate(spec) == []
    assert spec.devices[0].container_edits == ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",)), "may be repeated"
    assert BASE_DEVICE == f"{BASE_KIND}={spec.devices[0].name}" == "k8s.gpu.nvidia.com/driver=common"
    assert SpecDirectory(tmp_path, BASE_KIND).write(spec).name == "k8s.gpu.nvidia.com-driver.json"
