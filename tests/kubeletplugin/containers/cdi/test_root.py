# SPDX-License-Identifier: Apache-2.0
"""One tree, three views: this process's, the runtime's, a container's."""

from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import Root

from .trees import file, link


@pytest.mark.parametrize(
    ("host_path", "on_host"),
    [("/", "/usr/bin/x"), ("/run/nvidia/driver", "/run/nvidia/driver/usr/bin/x"), ("/run/d/", "/run/d/usr/bin/x")],
)
def test_a_path_has_a_form_for_this_process_and_one_for_the_runtime(host_path: str, on_host: str) -> None:
    root = Root(Path("/driver-root"), host_path)
    assert root.here("/usr/bin/x") == Path("/driver-root/usr/bin/x")
    assert root.on_host("/usr/bin/x") == on_host


@pytest.fixture
def tree(tmp_path: Path) -> Root:
    file(tmp_path, "/usr/lib64/real")
    file(tmp_path.parent, "/outside")
    for place, text in {
        "/lib64": "usr/lib64",
        "/absolute": "/usr/lib64/real",
        "/etc/alternatives/real": "/lib64/real",
        "/chain": "etc/alternatives/real",
        "/upwards": "../../../../usr/lib64/real",
        "/usr/lib64/dots": ".././lib64//real",
        "/escape": "../outside",
        "/gone": "nowhere",
        "/loop": "loop",
    }.items():
        link(tmp_path, place, text)
    return Root(tmp_path)


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/usr/lib64/real", "/usr/lib64/real"),
        ("/lib64/real", "/usr/lib64/real"),
        ("/absolute", "/usr/lib64/real"),
        ("/chain", "/usr/lib64/real"),
        ("/upwards", "/usr/lib64/real"),
        ("/lib64/dots", "/usr/lib64/real"),
        ("/", "/"),
        ("/lib64", "/usr/lib64"),
        ("/escape", None),
        ("/gone", None),
        ("/loop", None),
        ("/missing/real", None),
        ("/usr/lib64/real/below-a-file", None),
    ],
)
def test_links_are_followed_as_a_program_in_the_tree_would(tree: Root, path: str, resolved: str | None) -> None:
    assert tree.resolve(path) == resolved
