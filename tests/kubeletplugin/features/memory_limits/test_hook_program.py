# SPDX-License-Identifier: Apache-2.0
"""The hook program, compiled, beside the plugin's real socket; and the socket alone."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.gpu.simulated.faults import Fault
from kubeletplugin.errors import LaterError, LimitError
from kubeletplugin.features.memory_limits.server import HookServer
from tests.support.limits import compile_program, limit_node, real_cgroups
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

CLAIM = "6f0e4d6a-9c7e-4b7d-8a9f-1e0f3c1a5200"
ANY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, which gives up after two seconds: for tests in which it must give up or fail."""
    return compile_program(tmp_path_factory.mktemp("program") / "hook", seconds=2)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with its own time limit."""
    return compile_program(tmp_path_factory.mktemp("program") / "hook")


@pytest.fixture
def place() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        yield Path(name) / "hook.sock"


def state(pid: int) -> bytes:
    """What a runtime gives a hook."""
    annotations = {"pid": "1", 'a"': '"pid": 2, {', "b": "\\", "c": '\\"pid":3'}
    return json.dumps(
        {"ociVersion": "1.2.0", "annotations": annotations, "id": "x", "pid": pid, "bundle": "/"}
    ).encode()


def run(program: Path, place: Path, given: bytes, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run the program as a runtime does."""
    command = [str(program), str(place), *(arguments or (CLAIM, "gpu-0"))]
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)


def own_cgroup() -> str:
    """The cgroup of version 2 of this process."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    found = next((line[3:] for line in lines if line.startswith("0::")), None)
    if found is None:
        pytest.skip("this machine has no cgroup version 2")
    return found


class Served:
    """A real server. `result` is what a request leads to."""

    def __init__(self, place: Path, result: Callable[[], None] = lambda: None) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.unexpected: list[str] = []
        self._result = result
        self.server = HookServer(place, self._apply, self.unexpected.append)
        self.server.start()

    def _apply(self, claim: str, device: str, cgroup: str) -> None:
        self.asked.append((claim, device, cgroup))
        self._result()

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()


def raising(*errors: Exception | None) -> Callable[[], None]:
    """Raise these, one in each call; then nothing."""
    left = list(errors)

    def act() -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return act


def raising_once(error: Exception, over: threading.Event) -> Callable[[], None]:
    """Raise `error` in the first call. All other calls wait until it is over."""
    first = raising(error)

    def act() -> None:
        first()
        over.wait()

    return act


def test_the_plugin_is_told_the_cgroup_of_the_containers_process(patient: Path, place: Path) -> None:
    with Served(place) as served:
        done = run(patient, place, state(os.getpid()))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert served.asked == [(CLAIM, "gpu-0", own_cgroup())]
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_refusal_is_told_to_the_runtime(patient: Path, place: Path) -> None:
    own_cgroup()
    with Served(place, raising(LimitError("two\nlines, and ü"))):
        done = run(patient, place, state(os.getpid()))
    assert (done.returncode, done.stderr.decode()) == (1, "GPU memory limit: two lines, and ü\n")


def test_an_unexpected_error_refuses_the_container(patient: Path, place: Path) -> None:
    own_cgroup()
    with Served(place, raising(ZeroDivisionError("oh"))) as served:
        done = run(patient, place, state(os.getpid()))
    assert done.returncode == 1
    assert b"internal error" in done.stderr
    assert served.unexpected == ["limit memory"]


def test_the_program_asks_again_while_the_plugin_cannot_answer(patient: Path, place: Path) -> None:
    own_cgroup()
    with Served(place, raising(LaterError("no driver"), LaterError("busy"))) as served:
        done = run(patient, place, state(os.getpid()))
    assert (done.returncode, done.stderr, len(served.asked)) == (0, b"", 3)


def test_the_program_tells_why_the_plugin_could_not_answer_in_time(tmp_path: Path, place: Path) -> None:
    own_cgroup()
    for seconds in (2, 10, 50):  # a busy machine may need longer for the first answer
        over = threading.Event()
        with Served(place, raising_once(LaterError("there is no driver"), over)):
            text = run(compile_program(tmp_path / "hook", seconds), place, state(os.getpid())).stderr.decode()
            over.set()
        if "timed out" not in text:
            break
    assert f"did not set it within {seconds} s" in text
    assert "there is no driver" in text


def test_without_a_plugin_the_container_is_refused(program: Path, place: Path) -> None:
    own_cgroup()
    done = run(program, place, state(os.getpid()))
    assert done.returncode == 1
    assert f"({place}, No such file or directory)" in done.stderr.decode()


def test_a_plugin_that_hangs_is_given_up(program: Path, place: Path) -> None:
    own_cgroup()
    end = threading.Event()

    def hang() -> None:
        end.wait(60)

    with Served(place, hang):
        done = run(program, place, state(os.getpid()))
        end.set()
    assert done.returncode == 1
    assert "within 2 s" in done.stderr.decode()


CHILD = """
import sys, time
from pathlib import Path
from kubeletplugin.features.memory_limits.server import HookServer
def apply(*asked):
    Path(sys.argv[2]).touch()
    time.sleep(1000)
HookServer(Path(sys.argv[1]), apply).start()
time.sleep(1000)
"""


def test_a_plugin_that_is_killed_meanwhile_is_asked_again_after_its_restart(patient: Path, place: Path) -> None:
    own_cgroup()
    mark = place.with_name("asked")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(place), str(mark)])
    wait_for(place.exists, "the plugin")
    hook = subprocess.Popen([patient, place, CLAIM, "gpu-0"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert hook.stdin is not None
    hook.stdin.write(state(os.getpid()))
    hook.stdin.close()
    wait_for(mark.exists, "the request")
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert hook.poll() is None
    with Served(place) as served:
        assert hook.wait(60) == 0
    assert served.asked == [(CLAIM, "gpu-0", own_cgroup())]


def test_a_new_plugin_takes_the_path_over_and_an_old_one_ends_without_removing_it(patient: Path, place: Path) -> None:
    own_cgroup()
    with Served(place) as old:
        with Served(place) as new:
            old.server.stop()
            assert run(patient, place, state(os.getpid())).returncode == 0
        assert (len(old.asked), len(new.asked)) == (0, 1)


def test_a_socket_that_was_removed_is_made_again(patient: Path, place: Path) -> None:
    own_cgroup()
    with Served(place):
        place.unlink()
        wait_for(place.exists, "the socket")
        assert run(patient, place, state(os.getpid())).returncode == 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (b"", "has no pid"),
        (b"{}", "has no pid"),
        (b'{"pid": 0}', "has no pid"),
        (b'{"pid": -5}', "has no pid"),
        (b'{"pid": "5"}', "has no pid"),
        (b'{"pid": 5.5}', "has no pid"),
        (b'{"pid": 12345678901234567890}', "has no pid"),
        (b'{"a": {"pid": 5}, "b": [{"pid": 5}]}', "has no pid"),
        (b'{"a": "pid", "b": 5}', "has no pid"),
        (b'{"pid', "has no pid"),
        (b'{"pid": 999999999}', "cannot read /proc/999999999/cgroup: No such file or directory"),
        (b'{"a": "' + b"x" * (2 << 20) + b'", "pid": 5}', "cannot read the OCI state: File too large"),
    ],
)
def test_a_malformed_state_refuses_the_container(program: Path, place: Path, given: bytes, text: str) -> None:
    done = run(program, place, given)
    assert (done.returncode, done.stdout) == (1, b"")
    assert text in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a"], "usage"),
        ([CLAIM, "gpu-0", "more"], "usage"),
        ([CLAIM, "x" * 9000], "path of the container's cgroup is too long"),
    ],
)
def test_wrong_arguments_are_refused(program: Path, place: Path, arguments: list[str], text: str) -> None:
    own_cgroup()
    assert text in run(program, place, state(os.getpid()), *arguments).stderr.decode()


def test_a_path_that_is_too_long_for_a_socket_is_refused(program: Path) -> None:
    assert "the path of the socket is too long" in run(program, Path("/" + "x" * 200), b"{}").stderr.decode()


@ANY
@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,\\pid0123456789 \n').map(str.encode))
def test_no_state_crashes_the_program(program: Path, given: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-") as name, Served(Path(name) / "s"):
        done = run(program, Path(name) / "s", given)
    assert done.returncode in (0, 1), done.stderr


def answered(program: Path, answer: bytes) -> "subprocess.CompletedProcess[bytes]":
    """Run the program. It gets this answer, and is refused when it tries again."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{name}/s")
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 14)
                connection.sendall(answer)
            listener.close()  # the next attempts are refused

        threading.Thread(target=serve, daemon=True).start()
        return run(program, Path(name) / "s", state(os.getpid()))


NEARLY_OK = (b"ok", b"ok \n", b" ok\n", b"OK\n", b"okay\n", b"o", b"\0ok\n", b"ok\nmore")
OTHER_ANSWERS = (b"", b"\n", b"later\n", b"error\n", b"x" * 9000)


@settings(ANY, max_examples=2)
@given(st.sets(st.binary(max_size=100), min_size=10, max_size=10))
def test_only_the_word_ok_starts_a_container(program: Path, patient: Path, drawn: set[bytes]) -> None:
    own_cgroup()
    answers = {b"ok\n", *NEARLY_OK, *OTHER_ANSWERS, *drawn}
    # All at once: the program tries again for two seconds after most of them.
    with ThreadPoolExecutor(len(answers)) as threads:
        begun = [(one, threads.submit(answered, patient if is_ok(one) else program, one)) for one in answers]
        for answer, done in begun:
            assert done.result().returncode == (0 if is_ok(answer) else 1), (answer, done.result().stderr)


def is_ok(answer: bytes) -> bool:
    """Whether the answer lets a container start."""
    return answer.startswith(b"ok\n") and answer.endswith(b"\n")


def asked(place: Path, line: bytes) -> bytes:
    """The answer of the server to a line, which is lost if the line was too long."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(place))
        found = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 14):
                found += more
        return found


@ANY
@given(st.binary() | st.text(alphabet="1 a\n/.\0").map(str.encode) | st.just(b"1 " * 8000))
def test_a_malformed_request_is_refused_and_the_next_one_is_answered(line: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-") as name, Served(Path(name) / "s") as served:
        place = Path(name) / "s"
        answer = asked(place, line)
        assert answer in (b"", b"ok\n") or answer.startswith(b"error "), answer
        assert answer.count(b"\n") <= 1
        assert asked(place, f"1 {CLAIM} gpu-0 /x y\n".encode()) == b"ok\n"
        assert served.asked[-1] == (CLAIM, "gpu-0", "/x y")
        assert not served.unexpected


def test_many_connections_that_say_nothing_delay_no_container_for_long(patient: Path, place: Path) -> None:
    own_cgroup()
    with Served(place):
        idle = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        for one in idle:
            one.connect(str(place))
        assert run(patient, place, state(os.getpid())).returncode == 0
        for one in idle:
            one.close()


@pytest.fixture
def container() -> Iterator[tuple[Path, str, int]]:
    """A process in a real cgroup of a pod: where cgroups are mounted, the path of its cgroup, and its pid."""
    root = real_cgroups()
    if root is None:
        pytest.skip("needs root and cgroup version 2")
    kubepods = root / f"kubepods-{uuid.uuid4()}"
    folder = kubepods / f"pod{uuid.uuid4()}" / "container"
    folder.mkdir(parents=True)
    process = subprocess.Popen(["sleep", "1000"])
    try:
        (folder / "cgroup.procs").write_text(str(process.pid))
        yield root, str(folder).removeprefix(str(root)), process.pid
    finally:
        process.kill()
        process.wait()
        for one in (folder, folder.parent, kubepods):
            wait_for(lambda one=one: gone(one), "the end of the cgroup")  # type: ignore[misc]


def gone(folder: Path) -> bool:
    """Whether a cgroup could be removed."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def test_program_socket_and_nvml_together_with_real_cgroups(patient: Path, container: tuple[Path, str, int]) -> None:
    root, path, pid = container
    with limit_node(cgroups=root) as node:
        node.claim(CLAIM, mebibytes=2048)
        server = HookServer(node.files.socket, node.limiter.apply)
        server.start()
        done = run(patient, node.files.socket, state(pid))
        server.stop()
        assert (done.returncode, done.stderr) == (0, b"")
        nvml = node.node.nvml()
        nvml.initialize()
        gpu = nvml.device_by_index(0)
        folder = Path(f"{node.cgroups}{path}")
        assert [nvml.memory_limits(gpu, str(one)).hard >> 20 for one in (folder, folder.parent)] == [2048, 2048]


def test_a_call_of_nvml_that_hangs_refuses_the_container(patient: Path, container: tuple[Path, str, int]) -> None:
    root, _, pid = container
    with limit_node(cgroups=root, seconds=0.5) as node:
        node.claim(CLAIM)
        node.node.inject(Fault("nvmlDeviceSetMemoryLimits_v1", seconds=1000.0))
        server = HookServer(node.files.socket, node.limiter.apply)
        server.start()
        done = run(patient, node.files.socket, state(pid))
        server.stop()
        node.node.clear_faults()
    assert done.returncode == 1
    assert b"nvmlDeviceSetMemoryLimits_v1" in done.stderr
