# SPDX-License-Identifier: Apache-2.0
"""Which limits a container and its pod get, and which containers are refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.gpu.memory_limits import MemoryLimits
from dra_driver.gpu.nvml import DeviceHandle, Return
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.gpu.simulated.nvml import SimulatedNvml
from kubeletplugin.errors import LaterError, LimitError
from kubeletplugin.features.memory_limits.limiter import TIDY_SECONDS, Limiter
from tests.support.limits import LimitNode, Tree, limit_node
from tests.support.waiting import wait_for

SET = "nvmlDeviceSetMemoryLimits_v1"


@pytest.fixture
def node() -> Iterator[LimitNode]:
    """The kernel has dmem."""
    with limit_node() as made:
        yield made


@pytest.fixture
def flat() -> Iterator[LimitNode]:
    """The driver accounts for itself."""
    with limit_node(dmem=False) as made:
        yield made


def tree(node: LimitNode) -> Tree:
    assert node.tree is not None
    return node.tree


def test_container_and_pod_get_the_limit(node: LimitNode) -> None:
    node.claim("a", mebibytes=4096)
    node.limiter.apply("a", "gpu-0", tree(node).container("main"))
    assert node.limits() == {"pod0": 4096, "pod0/main": 4096}
    assert node.limits(1) == {}


@pytest.mark.parametrize("dmem", [True, False])
def test_containers_of_a_pod_share_the_memory_of_their_claim_where_limits_nest(dmem: bool) -> None:
    with limit_node(dmem=dmem) as node:
        node.claim("a")
        first, second = (tree(node).container(name) for name in ("first", "second"))
        node.limiter.apply("a", "gpu-0", first)
        if dmem:
            node.limiter.apply("a", "gpu-0", second)
            assert node.limits() == {"pod0": 1024, "pod0/first": 1024, "pod0/second": 1024}
        else:
            with pytest.raises(LimitError, match="another container of the pod uses gpu-0 of the claim with UID a"):
                node.limiter.apply("a", "gpu-0", second)
            assert node.limits() == {"pod0": 1024, "pod0/first": 1024}


@pytest.mark.parametrize("gone", [True, False])
def test_after_an_init_container_the_next_one_gets_the_memory_also_where_limits_do_not_nest(
    flat: LimitNode, gone: bool
) -> None:
    flat.claim("a")
    init = tree(flat).container("init")
    flat.limiter.apply("a", "gpu-0", init)
    tree(flat).remove(init) if gone else tree(flat).end(init)
    flat.limiter.apply("a", "gpu-0", tree(flat).container("main"))
    assert flat.limits()["pod0/main"] == 1024


@pytest.mark.parametrize("dmem", [True, False])
def test_claims_of_different_containers_add_up_in_their_pod(dmem: bool) -> None:
    with limit_node(dmem=dmem) as node:
        node.claim("a", mebibytes=1000)
        node.claim("b", mebibytes=200)
        node.claim("c", "gpu-1", mebibytes=30)
        for claim, device, name in [("a", "gpu-0", "one"), ("b", "gpu-0", "two"), ("c", "gpu-1", "two")]:
            node.limiter.apply(claim, device, tree(node).container(name))
        assert node.limits() == {"pod0": 1200, "pod0/one": 1000, "pod0/two": 200}
        assert node.limits(1) == {"pod0": 30, "pod0/two": 30}


def test_shares_of_one_gpu_in_one_container_add_up_however_often_the_runtime_asks(node: LimitNode) -> None:
    node.claim("a", "gpu-0-x", mebibytes=1000)
    node.claim("a", "gpu-0-y", mebibytes=200)
    node.claim("b", mebibytes=30)
    main = tree(node).container("main")
    for claim, device in [("a", "gpu-0-x"), ("a", "gpu-0-y"), ("b", "gpu-0"), ("a", "gpu-0-x"), ("b", "gpu-0")]:
        node.limiter.apply(claim, device, main)
    assert node.limits() == {"pod0": 1230, "pod0/main": 1230}


def test_a_container_that_is_started_again_gets_the_limit_again(node: LimitNode) -> None:
    node.claim("a")
    first = tree(node).container("first")
    node.limiter.apply("a", "gpu-0", first)
    tree(node).remove(first)
    node.limiter.apply("a", "gpu-0", tree(node).container("again"))
    assert node.limits() == {"pod0": 1024, "pod0/again": 1024}


def test_a_second_pod_with_the_claim_is_refused_until_the_first_has_no_process(node: LimitNode) -> None:
    node.claim("a")
    node.limiter.apply("a", "gpu-0", tree(node).container("main"))
    other = tree(node).container("main", pod=1)
    with pytest.raises(LimitError, match="the memory of a claim with a limit is for one pod") as refused:
        node.limiter.apply("a", "gpu-0", other)
    assert not isinstance(refused.value, LaterError)
    assert node.limits() == {"pod0": 1024, "pod0/main": 1024}
    tree(node).end(tree(node).pod())
    tree(node).end("/kubepods/besteffort/pod1b671a64-40d5-491e-99b0-da01ff1f3410")
    node.limiter.apply("a", "gpu-0", other)
    assert node.limits()["pod1/main"] == 1024


def test_another_plugin_on_the_node_knows_which_pod_has_a_claim(node: LimitNode) -> None:
    node.claim("a")
    node.limiter.apply("a", "gpu-0", tree(node).container("main"))
    after = Limiter(node.place, lambda *key: node.claims[key])
    with pytest.raises(LimitError, match="another pod"):
        after.apply("a", "gpu-0", tree(node).container("main", pod=1))
    after.apply("a", "gpu-0", tree(node).container("second"))
    assert node.limits() == {"pod0": 1024, "pod0/main": 1024, "pod0/second": 1024}


def test_limits_are_set_again_when_the_driver_was_loaded_anew(node: LimitNode) -> None:
    node.claim("a", mebibytes=1000)
    node.claim("b", mebibytes=200)
    for claim, name in (("a", "one"), ("b", "two")):
        node.limiter.apply(claim, "gpu-0", tree(node).container(name))
    before = node.limits()
    known = len(node.ready)
    node.node.load_driver()
    assert node.limits() == {}
    node.place.access.wake()
    wait_for(lambda: len(node.ready) > known, "the driver")
    assert node.limits() == before


def test_limits_that_cannot_be_set_again_are_set_later(node: LimitNode) -> None:
    limiter = Limiter(node.place, lambda *key: node.claims[key], first_pause=0.0)
    node.claim("a")
    limiter.apply("a", "gpu-0", tree(node).container("main"))
    assert limiter.attend() == TIDY_SECONDS
    node.node.inject(Fault(SET, code=Return.UNKNOWN))
    limiter.restore()
    assert limiter.attend() == 0.0, "one of them is still not set"
    node.node.clear_faults()
    assert limiter.attend() == TIDY_SECONDS


def test_limits_that_a_lost_driver_had_not_set_again_are_set_with_the_next_driver(node: LimitNode) -> None:
    limiter = Limiter(node.place, lambda *key: node.claims[key], first_pause=0.0)
    node.claim("a")
    limiter.apply("a", "gpu-0", tree(node).container("main"))
    node.node.inject(Fault(SET, code=Return.UNKNOWN))
    limiter.restore()
    node.node.clear_faults()
    node.node.unload_driver()
    assert limiter.attend() == 0.0, "the limit is still not set"
    node.node.load_driver()
    wait_for(node.has_driver, "the driver")
    assert limiter.attend() == TIDY_SECONDS


def test_claims_of_pods_that_are_gone_are_forgotten(node: LimitNode) -> None:
    for number, claim in enumerate("ab"):
        node.claim(claim)
        node.limiter.apply(claim, "gpu-0", tree(node).container("main", number))
    tree(node).remove(tree(node).pod(0))
    node.limiter.tidy()
    assert [path.name for path in node.files.claims.iterdir()] == ["b.json"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "pod": 5, "devices": []}'])
def test_a_damaged_file_is_replaced(node: LimitNode, text: bytes) -> None:
    node.claim("a")
    node.files.claims.mkdir(parents=True, exist_ok=True)
    (node.files.claims / "a.json").write_bytes(text)
    node.limiter.apply("a", "gpu-0", tree(node).container("main"))
    assert node.limits() == {"pod0": 1024, "pod0/main": 1024}


def test_a_call_that_hangs_refuses_the_container_and_no_other_gpu_waits() -> None:
    with limit_node(seconds=0.3) as node:
        node.claim("a")
        node.claim("b", "gpu-1")
        node.node.inject(Fault(SET, gpu=0, seconds=1000.0))
        main = tree(node).container("main")
        for _ in range(2):
            with pytest.raises(LimitError, match=rf"{SET} for GPU-\S+ has not returned within 0.3 s"):
                node.limiter.apply("a", "gpu-0", main)
        node.limiter.apply("b", "gpu-1", main)
        assert node.limits(1) == {"pod0": 1024, "pod0/main": 1024}
        node.node.clear_faults()
        wait_for(lambda: not node.place.threads.hangs(), "the call")
        node.limiter.apply("a", "gpu-0", main)
        assert node.limits() == {"pod0": 1024, "pod0/main": 1024}


def test_without_a_driver_the_hook_program_shall_ask_again(node: LimitNode) -> None:
    node.claim("a")
    node.node.unload_driver()
    with pytest.raises(LaterError, match="the NVIDIA driver is not ready"):
        node.limiter.apply("a", "gpu-0", tree(node).container("main"))


@pytest.mark.parametrize(
    ("code", "text"),
    [(Return.NOT_SUPPORTED, f"{SET}: NOT_SUPPORTED"), (Return.NO_PERMISSION, f"{SET}: NO_PERMISSION")],
)
def test_an_error_of_nvml_refuses_the_container(node: LimitNode, code: Return, text: str) -> None:
    node.claim("a")
    node.node.inject(Fault(SET, code=code))
    with pytest.raises(LimitError, match=text) as refused:
        node.limiter.apply("a", "gpu-0", tree(node).container("main"))
    assert not isinstance(refused.value, LaterError)
    assert "dmem" not in str(refused.value)


def test_a_cgroup_without_dmem_where_the_kernel_has_it_is_explained(node: LimitNode) -> None:
    node.claim("a")
    main = tree(node).container("main")
    Path(f"{node.cgroups}{main}/dmem.max").unlink()
    with pytest.raises(LimitError, match=r"\+dmem in the cgroup.subtree_control"):
        node.limiter.apply("a", "gpu-0", main)


class Forgetful(SimulatedNvml):
    """A driver that says that it has set a limit, and has not."""

    def set_memory_limits(self, device: DeviceHandle, cgroup: str, limits: MemoryLimits) -> None:
        """Nothing."""


def test_a_limit_that_is_not_there_afterwards_refuses_the_container() -> None:
    with limit_node(nvml=lambda node: Forgetful(node.root)) as node:
        node.claim("a")
        with pytest.raises(LimitError, match="after it was set to 1073741824 bytes"):
            node.limiter.apply("a", "gpu-0", tree(node).container("main"))


def test_a_claim_that_is_not_prepared_is_refused(node: LimitNode) -> None:
    with pytest.raises(LimitError, match="there is no claim a"):
        node.limiter.apply("a", "gpu-0", tree(node).container("main"))
    assert not node.files.claims.exists()
