# SPDX-License-Identifier: Apache-2.0
"""Metrics and probes, asked as Prometheus and kubelet ask."""

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest
import urllib3
from click.testing import CliRunner
from prometheus_client import Counter

from dra_driver.process.command import UserError
from dra_driver.process.endpoints import PREFIX, Checks, Endpoint, endpoint_options, new_registry, serving

pytestmark = pytest.mark.node


class Process:
    """A process that serves: its registry, and how to ask it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
        """(status, content type, body)"""
        answer = urllib3.request(method, self.url + path, headers=headers, retries=False, timeout=60)
        return answer.status, answer.headers.get("Content-Type", ""), answer.data.decode()


@contextmanager
def process(endpoint: Endpoint, *, live: Checks | None = None, ready: Checks | None = None) -> Iterator[Process]:
    registry = new_registry()
    Counter("slices_written", "Writes.", namespace=PREFIX, registry=registry).inc(3)
    with serving(endpoint, registry, live=live or {}, ready=ready or {}) as address:
        assert address is not None
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        yield Process(f"http://{host}:{address[1]}")


LOCAL = Endpoint("127.0.0.1", 0)


def test_metrics_hold_the_registry_and_the_process() -> None:
    with process(LOCAL) as one:
        status, kind, body = one.ask("/metrics")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        assert "nvidia_dra_slices_written_total 3.0" in body
        assert "process_resident_memory_bytes" in body
        assert "_created" not in body
        assert one.ask("/metrics", Accept="application/openmetrics-text")[2].endswith("# EOF\n")


def test_metrics_are_where_the_flag_says() -> None:
    with process(Endpoint("127.0.0.1", 0, "/numbers")) as one:
        assert one.ask("/numbers?name=x")[0] == 200
        status, _, body = one.ask("/metrics")
        assert status == 404
        assert "/numbers, /healthz, /readyz" in body


def test_readiness_lists_what_is_missing_and_health_does_not_care() -> None:
    missing: dict[str, str | None] = {"slices": "the API server is away", "watch": "nothing listed yet"}
    ready = {name: lambda name=name: missing[name] for name in missing}
    with process(LOCAL, live={"threads": lambda: None}, ready=ready) as one:
        status, _, body = one.ask("/readyz")
        assert (status, body) == (503, "slices: the API server is away\nwatch: nothing listed yet\n")
        assert one.ask("/healthz")[::2] == (200, "ok\n")
        missing["slices"] = None
        assert one.ask("/readyz")[::2] == (503, "watch: nothing listed yet\n")
        missing["watch"] = None
        assert one.ask("/readyz")[::2] == (200, "ok\n")


def test_a_check_that_fails_is_not_a_check_that_passes(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> str | None:
        raise ValueError("a bug")

    with process(LOCAL, live={"x": broken}) as one:
        assert one.ask("/healthz")[0] == 500
    assert "/healthz cannot be answered" in caplog.text


def test_only_probes_that_fail_or_change_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dra_driver.process.endpoints")
    missing: list[str | None] = [None]
    with process(LOCAL, ready={"slices": lambda: missing[0]}) as one:
        for missing[0] in (None, None, "away", "away", None, None):
            one.ask("/readyz")
            one.ask("/healthz")
        one.ask("/metrics")
        one.ask("/other")
    asked = [
        " ".join(found)
        for record in caplog.records
        for found in re.findall(r'"GET (\S+) .*" (\d+)', record.getMessage())
    ]
    readiness = ["/readyz 200", "/readyz 503", "/readyz 503", "/readyz 200"]
    assert [line for line in asked if line.startswith("/readyz")] == readiness
    assert [line for line in asked if line not in readiness] == ["/healthz 200", "/metrics 200", "/other 404"]


def test_invalid_request_is_answered() -> None:
    with process(LOCAL) as one:
        port = int(one.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"what is this, of all things?\r\n\r\n")
            assert b" 400 " in connection.recv(1024) or b"Error code: 400" in connection.recv(4096)


def test_head_has_the_headers_only_and_other_verbs_are_refused() -> None:
    with process(LOCAL) as one:
        assert one.ask("/healthz", "HEAD")[::2] == (200, "")
        assert one.ask("/healthz", "POST")[0] == 501


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
@pytest.mark.parametrize("host", ["::1", ""])
def test_ipv6(host: str) -> None:
    with process(Endpoint(host, 0)) as one:
        port = one.url.rpartition(":")[2]
        assert Process(f"http://[::1]:{port}").ask("/healthz")[0] == 200


def test_all_addresses_take_ipv4_too() -> None:
    with process(Endpoint("", 0)) as one:
        port = one.url.rpartition(":")[2]
        assert Process(f"http://127.0.0.1:{port}").ask("/healthz")[0] == 200


def test_a_port_that_is_taken_is_one_line() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError) as caught,
        serving(Endpoint("127.0.0.1", taken.getsockname()[1]), new_registry()),
    ):
        pass
    assert "in use" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_port_is_free_again_at_once() -> None:
    with process(LOCAL) as one:
        port = int(one.url.rpartition(":")[2])
        one.ask("/healthz")
    with process(Endpoint("127.0.0.1", port)) as two:
        assert two.ask("/healthz")[0] == 200


def test_off_means_no_server() -> None:
    with serving(Endpoint(), new_registry()) as address:
        assert address is None


@click.command()
@endpoint_options
def command(endpoint: Endpoint) -> None:
    click.echo(repr(endpoint))


@pytest.mark.parametrize(
    ("flags", "environment", "endpoint"),
    [
        ([], {}, Endpoint()),
        ([], {"HTTP_ENDPOINT": ""}, Endpoint()),
        ([], {"HTTP_ENDPOINT": ":8080", "METRICS_PATH": "/m"}, Endpoint("", 8080, "/m")),
        (["--http-endpoint", ""], {"HTTP_ENDPOINT": ":8080"}, Endpoint()),
        (["--http-endpoint", "[::1]:0"], {}, Endpoint("::1", 0)),
        (["--http-endpoint", "localhost:1"], {}, Endpoint("localhost", 1)),
    ],
)
def test_flags(flags: list[str], environment: dict[str, str], endpoint: Endpoint) -> None:
    done = CliRunner().invoke(command, flags, env=environment)
    assert (done.exit_code, done.output.strip()) == (0, repr(endpoint))


@pytest.mark.parametrize(
    "flags",
    [
        ["--http-endpoint", "8080"],
        ["--http-endpoint", "::1:8080"],
        ["--http-endpoint", ":http"],
        ["--http-endpoint", ":65536"],
        ["--metrics-path", "metrics"],
        ["--metrics-path", "/healthz"],
    ],
)
def test_mistakes_in_flags(flags: list[str]) -> None:
    done = CliRunner().invoke(command, flags)
    assert done.exit_code == 2
    assert repr(flags[1]) in done.output
