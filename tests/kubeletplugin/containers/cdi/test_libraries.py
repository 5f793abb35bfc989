# SPDX-License-Identifier: Apache-2.0
"""The driver's libraries are found wherever distributions put them, with the links that lead to them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import DriverFilesError, Root
from kubeletplugin.containers.cdi.libraries import DriverLibraries, find_libraries

from .trees import SONAMES, VERSION, file, libraries, link

MULTIARCH = "/usr/lib/x86_64-linux-gnu"


def paths(found: DriverLibraries) -> set[str]:
    return {library.path for library in found.libraries}


def links(found: DriverLibraries) -> dict[str, str]:
    return {link.path: link.target for link in found.links}


def merged_usr(root: Path, *folders: str) -> None:
    """/lib and its like as links into /usr, as today's distributions have them."""
    for folder in folders:
        (root / "usr" / folder).mkdir(parents=True, exist_ok=True)
        link(root, f"/{folder}", f"usr/{folder}")


def debian(root: Path) -> None:
    merged_usr(root, "lib", "lib64")
    libraries(root, MULTIARCH)


def debian_not_merged(root: Path) -> None:
    libraries(root, "/lib/x86_64-linux-gnu")


def debian_alternatives(root: Path) -> None:
    """Debian's own packages: libraries in a folder of the version, chosen by links through /etc/alternatives."""
    merged_usr(root, "lib", "lib64")
    libraries(root, f"{MULTIARCH}/nvidia/current")
    for name in SONAMES.values():
        link(root, f"{MULTIARCH}/{name}", f"/etc/alternatives/nvidia--{name}")
        link(root, f"/etc/alternatives/nvidia--{name}", f"{MULTIARCH}/nvidia/current/{name}")


def rhel(root: Path) -> None:
    merged_usr(root, "lib", "lib64")
    libraries(root, "/usr/lib64")
    libraries(root, "/usr/lib")  # the 32-bit ones


def arm(root: Path) -> None:
    merged_usr(root, "lib", "lib64")
    libraries(root, "/usr/lib/aarch64-linux-gnu")


def absolute_links(root: Path) -> None:
    """A root whose links are absolute: followed by this process as they are, they would lead out of it."""
    (root / "usr/lib64").mkdir(parents=True)
    link(root, "/lib64", "/usr/lib64")
    for name in SONAMES:
        file(root, f"/usr/lib64/{name}.{VERSION}")
        link(root, f"/usr/lib64/{SONAMES[name]}", f"/lib64/{name}.{VERSION}")
        link(root, f"/usr/lib64/{name}", f"/usr/lib64/{SONAMES[name]}")


LAYOUTS = [
    (debian, MULTIARCH),
    (debian_not_merged, "/lib/x86_64-linux-gnu"),
    (debian_alternatives, f"{MULTIARCH}/nvidia/current"),
    (rhel, "/usr/lib64"),
    (arm, "/usr/lib/aarch64-linux-gnu"),
    (absolute_links, "/usr/lib64"),
]


@pytest.mark.parametrize(("layout", "folder"), LAYOUTS)
def test_libraries_are_found_once_with_their_folder(
    tmp_path: Path, layout: Callable[[Path], None], folder: str
) -> None:
    layout(tmp_path)
    found = find_libraries(Root(tmp_path), VERSION)
    assert sorted(library.path for library in found.libraries) == sorted(f"{folder}/{n}.{VERSION}" for n in SONAMES)
    assert all(library.source == library.path for library in found.libraries)
    assert found.folders == (folder,)
    assert found.folder_of("libcuda.so") == folder
    assert found.folder_of("libcudart.so") == ""


@pytest.mark.parametrize(("layout", "folder"), LAYOUTS)
def test_every_link_leads_to_its_library_inside_a_container(
    tmp_path: Path, layout: Callable[[Path], None], folder: str
) -> None:
    layout(tmp_path)
    found = find_libraries(Root(tmp_path), VERSION)
    container = tmp_path / "container"
    for library in found.libraries:
        file(container, library.path, text=library.path)
    for made in found.links:
        link(container, made.path, made.target)
    inside = Root(container)
    for name, soname in SONAMES.items():
        assert inside.resolve(f"{folder}/{soname}") == f"{folder}/{name}.{VERSION}"
    assert inside.resolve(f"{folder}/libcuda.so") == f"{folder}/libcuda.so.{VERSION}"
    assert {made.path: inside.resolve(made.path) for made in found.links} == {
        made.path: made.library.path for made in found.links
    }


def test_links_keep_the_text_that_they_have_on_the_node(tmp_path: Path) -> None:
    debian(tmp_path)
    assert links(find_libraries(Root(tmp_path), VERSION)) == {
        f"{MULTIARCH}/{link}": target
        for name, soname in SONAMES.items()
        for link, target in ((name, soname), (soname, f"{name}.{VERSION}"))
    }


def test_links_by_way_of_files_that_are_not_mounted_name_the_library_itself(tmp_path: Path) -> None:
    debian_alternatives(tmp_path)
    assert links(find_libraries(Root(tmp_path), VERSION))[f"{MULTIARCH}/libcuda.so.1"] == (
        f"{MULTIARCH}/nvidia/current/libcuda.so.{VERSION}"
    )


def test_links_that_programs_count_on_are_added_when_the_node_lacks_them(tmp_path: Path) -> None:
    for name in (
        "libcuda.so",
        "libGLX_nvidia.so",
        "libnvidia-allocator.so",
        "libnvidia-opticalflow.so",
        "libnvidia-vulkan-producer.so",
        "nvidia/xorg/libglxserver_nvidia.so",
    ):
        file(tmp_path, f"/usr/lib64/{name}.{VERSION}")
    assert links(find_libraries(Root(tmp_path), VERSION)) == {
        "/usr/lib64/libcuda.so": "libcuda.so.1",
        "/usr/lib64/libcuda.so.1": f"libcuda.so.{VERSION}",
        "/usr/lib64/libGLX_indirect.so.0": f"libGLX_nvidia.so.{VERSION}",
        "/usr/lib64/libnvidia-allocator.so.1": f"libnvidia-allocator.so.{VERSION}",
        "/usr/lib64/gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
        "/usr/lib64/libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
        "/usr/lib64/libnvidia-opticalflow.so.1": f"libnvidia-opticalflow.so.{VERSION}",
        "/usr/lib64/libnvidia-vulkan-producer.so": f"libnvidia-vulkan-producer.so.{VERSION}",
        "/usr/lib64/nvidia/xorg/libglxserver_nvidia.so": f"libglxserver_nvidia.so.{VERSION}",
    }


def test_libraries_of_inner_folders_and_of_other_version_schemes_belong(tmp_path: Path) -> None:
    debian(tmp_path)
    belonging = {
        f"{MULTIARCH}/vdpau/libvdpau_nvidia.so.{VERSION}",
        f"{MULTIARCH}/libnvidia-egl-gbm.so.1.1.2",
        f"{MULTIARCH}/libnvidia-egl-wayland2.so.1.0.0",
        f"{MULTIARCH}/libnvidia-nvvm70.so.4",
        f"{MULTIARCH}/libnvidia-api.so.1",
        f"{MULTIARCH}/nvidia/xorg/libglxserver_nvidia.so.{VERSION}",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
    }
    for path in belonging:
        file(tmp_path, path)
    link(tmp_path, f"{MULTIARCH}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    link(tmp_path, f"{MULTIARCH}/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1")
    found = find_libraries(Root(tmp_path), VERSION)
    assert paths(found) == belonging | {f"{MULTIARCH}/{name}.{VERSION}" for name in SONAMES}
    assert links(found)[f"{MULTIARCH}/libnvidia-egl-gbm.so.1"] == "libnvidia-egl-gbm.so.1.1.2"
    assert f"{MULTIARCH}/gbm/nvidia-drm_gbm.so" not in links(found), "there is no libnvidia-allocator for it"
    assert found.folders == (MULTIARCH,), "the loader need not know folders of plug-ins"


@pytest.mark.parametrize("folder", [MULTIARCH, "/usr/lib", "/usr/lib64", "/usr/X11R6/lib", "/usr/X11R6/lib64"])
@pytest.mark.parametrize("inner", ["drivers", "extensions", "updates/drivers", "updates/extensions"])
def test_the_drivers_parts_of_an_x_server_are_found_wherever_distributions_put_them(
    tmp_path: Path, folder: str, inner: str
) -> None:
    debian(tmp_path)
    place = f"{folder}/modules/{inner}" if "X11R6" in folder else f"{folder}/xorg/modules/{inner}"
    for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{VERSION}"):
        file(tmp_path, f"{place}/{name}")
    assert {f"{place}/nvidia_drv.so", f"{place}/libglxserver_nvidia.so.{VERSION}"} <= paths(
        find_libraries(Root(tmp_path), VERSION)
    )


def test_files_of_another_driver_are_left_out(tmp_path: Path) -> None:
    debian(tmp_path)
    libraries(tmp_path, "/usr/lib64", "570.00.01")
    file(tmp_path, f"{MULTIARCH}/libc.so.6")
    file(tmp_path, f"{MULTIARCH}/libcuda.so.{VERSION}.bak")
    file(tmp_path, f"{MULTIARCH}/libcuda.so.{VERSION}1")
    found = find_libraries(Root(tmp_path), VERSION)
    assert paths(found) == {f"{MULTIARCH}/{name}.{VERSION}" for name in SONAMES}
    assert all(path.startswith(MULTIARCH) for path in links(found))


def test_a_library_kept_elsewhere_is_mounted_where_its_link_is(tmp_path: Path) -> None:
    debian(tmp_path)
    file(tmp_path, f"/opt/nvidia/libcudadebugger.so.{VERSION}")
    link(tmp_path, f"{MULTIARCH}/libcudadebugger.so.{VERSION}", f"/opt/nvidia/libcudadebugger.so.{VERSION}")
    link(tmp_path, f"{MULTIARCH}/libcudadebugger.so.1", f"libcudadebugger.so.{VERSION}")
    found = find_libraries(Root(tmp_path), VERSION)
    (library,) = (item for item in found.libraries if "debugger" in item.path)
    assert library.path == f"{MULTIARCH}/libcudadebugger.so.{VERSION}"
    assert library.source == f"/opt/nvidia/libcudadebugger.so.{VERSION}"
    assert links(found)[f"{MULTIARCH}/libcudadebugger.so.1"] == f"libcudadebugger.so.{VERSION}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, r"below .*, searched in /usr/lib64, /usr/lib/x86_64-linux-gnu, "),
        (lambda root: libraries(root, "/usr/lib64", "570.00.01"), r"searched in /usr/lib64: is this the driver root"),
        (lambda root: file(root, "/usr/lib64/libnvidia-egl-gbm.so.1.1.2"), r"\*\.so\.580\.95\.05"),
    ],
)
def test_a_root_without_this_driver_is_an_error_that_says_where_was_searched(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path)
    with pytest.raises(DriverFilesError, match=message):
        find_libraries(Root(tmp_path), VERSION)
