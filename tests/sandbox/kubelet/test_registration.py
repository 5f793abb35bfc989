# SPDX-License-Identifier: Apache-2.0
"""Registration over real sockets, with a plugin that does as it is told."""

import socket
import threading
import time
from pathlib import Path

import pytest

from dra_driver.sandbox.kubelet import Kubelet, KubeletOptions
from dra_driver.sandbox.kubelet.plugin import registration_channel
from dra_driver.sandbox.kubelet.wire import GET_INFO, decode_info, encode_nothing

from .memory_cluster import MemoryCluster
from .scripted_plugin import DRIVER, ScriptedPlugin


def test_a_plugin_that_makes_its_socket_is_registered_and_told_so(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        (registration,) = kubelet.plugins(DRIVER)
        kubelet.wait(lambda: plugin.statuses == [None], what="the plugin told")
    assert registration.endpoint == str(plugin.service_socket)
    assert registration.service == "v1.DRAPlugin"


def test_a_plugin_that_was_there_before_kubelet_is_registered_too(
    options: KubeletOptions, cluster: MemoryCluster, root: Path
) -> None:
    with ScriptedPlugin(root), Kubelet(options, cluster) as kubelet:
        kubelet.wait_registered(DRIVER)


def test_without_an_endpoint_the_registration_socket_serves(kubelet: Kubelet, root: Path) -> None:
    plugin = ScriptedPlugin(root)
    plugin.info = lambda: {"type": "DRAPlugin", "name": DRIVER, "supported_versions": ["v1.DRAPlugin"]}
    plugin.serve_on_one_socket()
    kubelet.wait_registered(DRIVER)
    assert kubelet.plugins(DRIVER)[0].endpoint == str(plugin.registration_socket)
    assert dict(kubelet.prepare(DRIVER, [])) == {}
    plugin.unregister()


def test_hidden_sockets_and_ordinary_files_do_not_count(kubelet: Kubelet, root: Path) -> None:
    hidden, shown = ScriptedPlugin(root, "hidden.example.com"), ScriptedPlugin(root, "shown.example.com")
    hidden.registration_socket = root / "plugins_registry" / ".hidden.sock"
    (root / "plugins_registry" / "file.sock").write_text("not a socket")
    with hidden, shown:
        kubelet.wait_registered("shown.example.com")
    assert hidden.statuses == []
    assert kubelet.journal.entries("PluginRegistrationFailed") == ()


@pytest.mark.parametrize(
    ("info", "error"),
    [
        (
            {"type": "CSIPlugin", "name": DRIVER, "supported_versions": ["v1.DRAPlugin"]},
            "RegisterPlugin error -- no handler registered for plugin type: CSIPlugin at socket {socket}",
        ),
        (
            {"type": "DRAPlugin", "name": DRIVER, "endpoint": "/dra.sock"},
            "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of "
            "DRA driver plugin gpu.example.com at endpoint /dra.sock: "
            "empty list of supported gRPC services (aka supported versions)",
        ),
        (
            {"type": "DRAPlugin", "name": DRIVER, "endpoint": "/dra.sock", "supported_versions": ["1.0.0", "v2"]},
            "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of "
            "DRA driver plugin gpu.example.com at endpoint /dra.sock: none of services supported by the plugin "
            '(["1.0.0" "v2"]) are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])',
        ),
    ],
)
def test_an_unsound_plugin_is_told_why_again_and_again(
    kubelet: Kubelet, root: Path, info: dict[str, object], error: str
) -> None:
    plugin = ScriptedPlugin(root)
    plugin.info = lambda: info
    with plugin:
        kubelet.wait(lambda: len(plugin.statuses) >= 3, what="three refusals")
    assert set(plugin.statuses) == {error.format(socket=plugin.registration_socket)}
    assert kubelet.plugins(DRIVER) == ()


def test_a_plugin_that_refuses_its_own_registration_is_dropped_and_tried_again(kubelet: Kubelet, root: Path) -> None:
    plugin = ScriptedPlugin(root)

    def refuse_once(error: str) -> None:
        if len(plugin.statuses) == 1:
            raise RuntimeError("not ready")

    plugin.on_notify = refuse_once
    with plugin:
        kubelet.wait_event("PluginRegistrationFailed", str(plugin.registration_socket))
        kubelet.wait_event("PluginRegistered", DRIVER, count=2)
        kubelet.wait_registered(DRIVER)
        assert len(kubelet.journal.entries("PluginDeregistered", DRIVER)) == 1
        kubelet.wait(lambda: plugin.statuses == [None, None], what="the plugin told twice")


def test_get_info_has_one_second(kubelet: Kubelet, root: Path) -> None:
    plugin = ScriptedPlugin(root)
    quick, slow = plugin.info, threading.Event()

    def slow_once() -> object:
        if not slow.is_set():
            slow.set()
            time.sleep(1.2)
        return quick()

    plugin.info = slow_once  # type: ignore[assignment]
    with plugin:
        kubelet.wait_registered(DRIVER)
    (failure, *_) = kubelet.journal.entries("PluginRegistrationFailed")
    assert failure.message.endswith("err: rpc error: code = DeadlineExceeded desc = context deadline exceeded")


def test_a_socket_without_a_listener_is_tried_until_somebody_listens(kubelet: Kubelet, root: Path) -> None:
    plugin = ScriptedPlugin(root)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(plugin.registration_socket))
    kubelet.wait_event("PluginRegistrationFailed")
    plugin.registration_socket.unlink()
    with plugin:
        kubelet.wait_registered(DRIVER)


def test_removing_the_socket_deregisters(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        plugin.unregister()
        kubelet.wait_deregistered(DRIVER)
        plugin.register()
        kubelet.wait_registered(DRIVER)


def test_a_replaced_socket_is_a_new_registration(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        other = ScriptedPlugin(root)
        other.registration_socket = root / "elsewhere.sock"
        other.register()
        other.registration_socket.rename(plugin.registration_socket)
        kubelet.wait(lambda: other.statuses == [None], what="the new socket's plugin told")
        kubelet.wait_registered(DRIVER)
        other.unregister()
    assert len(kubelet.journal.entries("PluginRegistered", DRIVER)) == 2


def test_two_registrations_may_not_share_an_endpoint(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root) as first:
        kubelet.wait_registered(DRIVER)
        thief = ScriptedPlugin(root, suffix="-2")
        thief.info = first.info
        with thief:
            kubelet.wait(lambda: bool(thief.statuses), what="a refusal")
    assert thief.statuses[0] == (
        "RegisterPlugin error -- plugin registration failed with err: endpoint "
        f"{first.service_socket} already registered for DRA driver plugin {DRIVER}"
    )


def test_the_registration_dial_names_the_escaped_path_as_authority(root: Path) -> None:
    path = str(root / "a b-reg.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        channel = registration_channel(path)
        call = channel.unary_unary(GET_INFO, encode_nothing, decode_info).future(None)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # an empty SETTINGS frame
            received = b""
            while b"-reg.sock" not in received:
                received += connection.recv(65536)
        channel.close()
        call.exception()
    assert path.replace("/", "%2F").replace(" ", "%20").encode() in received
