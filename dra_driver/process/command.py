# SPDX-License-Identifier: Apache-2.0
"""Common parts of all commands: flags that are also environment variables, logging, and errors in one line."""

import errno
import faulthandler
import functools
import importlib.util
import inspect
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import click

from .. import __version__
from ..errors import DriverError, OutputError
from .streams import abandon_output, adopt_streams, printable

log = logging.getLogger(__name__)

USAGE = 2
"""The exit code for invalid input."""

_SOFTWARE = 70
"""The exit code after a defect of the program (sysexits.h). For some commands, 1 is a valid answer."""

_DEBUG_VERBOSITY = 4
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_PART = re.compile(rf"({_NUMBER.pattern})(h|ms|m|s)")
_DURATION = re.compile(f"(?:{_PART.pattern})+")

F = TypeVar("F", bound=Callable[..., Any])

_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class UserError(click.ClickException):
    """An error that the user can correct. The message says what is wrong, where, and what to do."""


class InputError(UserError):
    """Invalid input: a file, an object, or the value of a flag."""

    exit_code = USAGE


class DurationParameter(click.ParamType[float]):
    """Seconds, in the format of Go's durations (15s, 1m30s, 500ms), and with `plain_numbers` also a number of seconds.

    `example` is what the error suggests.
    """

    name = "duration"

    def __init__(self, example: str, *, plain_numbers: bool = False) -> None:
        self._example = example
        self._plain_numbers = plain_numbers

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number of seconds. Fails on any other text."""
        if isinstance(value, float):
            return value
        text = str(value)
        if self._plain_numbers and _NUMBER.fullmatch(text):
            return float(text)
        if not _DURATION.fullmatch(text):
            self.fail(f"{text!r} is not a duration such as {self._example}", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def flag(name: str, *, prefix: str = "", show_default: bool | str | None = None, **settings: Any) -> Callable[[F], F]:
    """A click option that an environment variable can set too: NODE_NAME for --node-name, unless `envvar` has another.

    The name of the variable starts with `prefix`. The help shows the variable, and the default unless that is empty or
    `show_default` is set.
    """
    variable = name.partition("/")[0].lstrip("-").upper().replace("-", "_")
    settings.setdefault("envvar", f"{prefix}{variable}")
    shown = bool(settings.get("default")) if show_default is None else show_default
    return click.option(name, show_envvar=True, show_default=shown, **settings)


def flags(parameter: str, make: Callable[..., object], *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several flags as one argument of a command: `parameter` is the result of `make` with the values of the flags."""
    names = tuple(inspect.signature(make).parameters)

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapped(*arguments: object, **given: object) -> object:
            made = make(**{name: given.pop(name) for name in names})
            return command(*arguments, **given, **{parameter: made})

        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature, not the type

    return decorate


def logging_options(command: F, prefix: str = "") -> F:
    """Adds the flags --log-format and -v, and sets up logging before the command runs.

    The names of their environment variables start with `prefix`.
    """
    command = click.option(
        "-v",
        "--verbosity",
        type=click.IntRange(min=0),
        default=0,
        envvar=f"{prefix}LOG_VERBOSITY",
        show_envvar=True,
        expose_value=False,
        is_eager=True,
        callback=lambda context, _parameter, value: context.meta.__setitem__("verbosity", value),
        help="How much is logged: 0 for important messages, 4 for every step.",
    )(command)
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        envvar=f"{prefix}LOG_FORMAT",
        show_envvar=True,
        show_default=True,
        expose_value=False,
        callback=lambda context, _parameter, value: set_up_logging(value, context.meta.get("verbosity", 0)),
        help="The format of the log lines on standard error.",
    )(command)


def kubeconfig_option(command: F) -> F:
    """Adds the flag --kubeconfig."""
    text = "The kubeconfig of the cluster. In a pod, the default is its service account."
    return flag("--kubeconfig", metavar="FILE", help=text)(command)


def output_option(formats: Sequence[str], variable: str | None, what: str) -> Callable[[F], F]:
    """Adds the flag -o/--output, whose value is one of `formats`. The first format is the default.

    `variable` is the environment variable of the flag, or None.
    """
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        envvar=variable,
        show_envvar=True,
        help=what,
    )


def version_option(command: F) -> F:
    """Adds the flag --version."""
    return click.version_option(__version__, message="%(prog)s %(version)s")(command)


def set_up_logging(style: str, verbosity: int) -> None:
    """Log to standard error in the style `text` or `json`."""
    handler = logging.StreamHandler()
    handler.setFormatter(_json_formatter() if style == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbosity >= _DEBUG_VERBOSITY else logging.INFO)
    # No line shows these, and finding them out takes a third of the time of a line. See Optimization in Python's HOWTO.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # urllib3 warns of each retry, but the sender of the request reports its result anyway.
    logging.getLogger("urllib3").setLevel(logging.WARNING if verbosity >= _DEBUG_VERBOSITY else logging.ERROR)


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the distribution (`dra-driver-gpu[NAME]`), and the modules of it that a command needs."""

    name: str
    modules: tuple[str, ...]

    def missing(self) -> list[str]:
        """The modules that are not installed. They are searched, but not imported."""
        return [module for module in self.modules if importlib.util.find_spec(module) is None]


def run(
    command: click.Command,
    arguments: Sequence[str] | None = None,
    extra: Extra | None = None,
    context_object: object = None,
) -> None:
    """Run a command as a process. Errors end the process with one line on standard error and a code that is not 0.

    If the command needs an `extra` that is not installed, this is the error, whatever the arguments are. If the reader
    of the output ends, the process ends like after SIGPIPE. SIGUSR2 prints the stacks of all threads. The command finds
    `context_object` in its click context.
    """
    name = _program(command)
    adopt_streams()
    if extra is not None and (missing := extra.missing()):
        modules = ", ".join(missing)
        _end(f"{name}: modules {modules} are not installed: pip install 'dra-driver-gpu[{extra.name}]'", USAGE)
    faulthandler.register(signal.SIGUSR2, file=2)
    try:
        words = None if arguments is None else list(arguments)
        code = command.main(args=words, prog_name=name, standalone_mode=False, obj=context_object)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        _end(error.format_message(), USAGE)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else name
        _end(f"{path}: {_one_line(error.format_message())} (see {path} --help)", USAGE)
    except click.ClickException as error:
        _end(f"{name}: {error.format_message()}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    except OutputError as error:
        abandon_output()
        if error.error.errno == errno.EPIPE:
            sys.exit(128 + signal.SIGPIPE)
        _end(f"{name}: {error}", USAGE)
    except DriverError as error:
        _end(f"{name}: {error}", UserError.exit_code)
    except Exception:
        traceback.print_exc()
        sys.exit(_SOFTWARE)
    sys.exit(code if isinstance(code, int) else 0)


def _program(command: click.Command) -> str:
    """The name with which the program was called. If Python was called with a file or `-c`, the name of the command.

    A plugin of kubectl is called `kubectl-dra_dryrun`, and the user has typed `kubectl dra-dryrun`.
    """
    called = Path(sys.argv[0]).name
    if called.startswith("kubectl-"):
        return called.replace("-", " ", 1).replace("_", "-")
    return command.name or called if called.endswith(".py") or called in ("", "-c") else called


def end_when_a_thread_fails() -> None:
    """Log an unexpected exception of any thread and end the process, so that kubelet restarts it."""

    def fail(arguments: threading.ExceptHookArgs) -> None:
        kind, value, trace = arguments.exc_type, arguments.exc_value, arguments.exc_traceback
        details: tuple[type[BaseException], BaseException, TracebackType | None] | None = (
            (kind, value, trace) if value is not None else None
        )
        name = arguments.thread.name if arguments.thread is not None else "?"
        log.critical("thread %s failed, ending the process", name, exc_info=details)
        logging.shutdown()
        os._exit(_SOFTWARE)

    threading.excepthook = fail


def on_termination(stop: Callable[[], None]) -> None:
    """Call `stop` on a thread of its own after SIGTERM or SIGINT.

    Python calls signal handlers on the main thread. It may hold the lock that setting an event needs, and it may wait
    for something while another thread receives the signal. Therefore the handlers do nothing. The interpreter writes
    the number of a signal to a pipe at once, on whatever thread it arrives.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)

    def wait() -> None:
        while (number := os.read(reader, 1)[0]) not in (signal.SIGTERM, signal.SIGINT):
            pass
        log.info("stopping", extra={"signal": signal.Signals(number).name})
        stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _end(line: str, code: int) -> None:
    sys.stderr.write(f"{printable(line)}\n")
    sys.exit(code)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line[0].lower() + line[1:].removesuffix(".") if line else line


class _TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO dra_driver.x message key=value …`"""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {record.getMessage()}"
        fields = "".join(f" {name}={value}" for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS)
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return printable(line + fields + trace)


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


def _json_formatter() -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter  # only imported if it is used

    fields = {"levelname": "level", "name": "logger", "message": "message"}
    return JsonFormatter("%(levelname)s %(name)s %(message)s", rename_fields=fields, timestamp=True)
