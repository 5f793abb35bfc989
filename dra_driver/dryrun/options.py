# SPDX-License-Identifier: Apache-2.0
"""Options that several subcommands of dra-dryrun have: their help, their environment variables, and what they mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ..errors import DriverError, OutputError
from ..process.command import InputError, flags, logging_options, version_option
from ..scheduler.allocator import RELEASES
from ..scheduler.allocator.features import DEFAULT_RELEASE
from . import INTERRUPTED
from .release import Rules
from .releaseparameter import ReleaseParameter
from .report import DOCUMENTS, error_document, print_document
from .status import Note, NotesError
from .subcommands import HelpInShort

F = TypeVar("F", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

PREFIX: Final = "DRA_DRYRUN_"
"""The prefix of all environment variables. An option of one subcommand has its name too: `DRA_DRYRUN_FIT_OUTPUT`."""

_OPTION_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Options that are often used": (
        *("--filename", "--namespace", "--context", "--all-pending", "--slices", "--with-node", "--replicas"),
        *("--watch", "--to", "--output", "--write", "--strict", "--anonymise"),
        *("--selector", "--driver-version", "--health", "--effect", "--taint", "--undo", "--group", "--node"),
    ),
    "What is selected": ("--pod", "--claim", "--unhealthy", "--free", "--by"),
    "Which pods move": (
        "--whole-gpus",
        "--whole-nodes",
        "--report",
        "--never",
        "--owner",
        "--guard",
        "--at-most",
        "--steps",
    ),
    "Where the objects come from": (
        *("--kubeconfig", "--in-cluster", "--as", "--request-timeout", "--all-namespaces", "--built-in"),
    ),
    "What would be if": (
        *("--without-claims", "--drain", "--policy", "--driver-policy", "--node-labels", "--strict-labels"),
    ),
    "What is evaluated": (
        *("--kubernetes-version", "--feature-gates", "--feature-gates-now", "--ideal", "--devices-only", "--verify"),
        *("--min-count", "--search-timeout"),
    ),
    "Waiting for a change": ("--until-fits", "--timeout"),
    "General options": ("--color", "--log-format", "--verbosity", "--version", "--help"),
}
"""The sections of the help, in their order, and the options in each. A subcommand has some of them."""

_COLORS: Final = {"auto": None, "always": True, "never": False}


def complete_files(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Lets the shell complete the names of files."""
    return [CompletionItem(incomplete, type="file")]


def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option that several subcommands share. The environment variable of `--with-node` is `DRA_DRYRUN_WITH_NODE`."""
    if settings.get("metavar") == "FILE":
        settings["shell_complete"] = complete_files
    return click.option(*names, envvar=f"{PREFIX}{_word(names)}", **settings)


filename_option = click.option(
    "-f",
    "--filename",
    "more_files",
    multiple=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="The same as the argument FILE, as in kubectl.",
)
"""Adds -f, given to the command as `more_files`."""


def files_argument(metavar: str = "[FILE]...", complete: Complete = complete_files) -> Callable[[F], F]:
    """Adds the argument FILE and -f, given to the command together as `files`."""
    argument = click.argument("files", nargs=-1, metavar=metavar, shell_complete=complete)
    return flags("files", lambda files, more_files: (*files, *more_files), argument, filename_option)


def interrupted(what: str) -> int:
    """Prints what Ctrl-C has left undone. Returns the exit code."""
    click.echo(f"interrupted: {what}", err=True)
    return INTERRUPTED


def general_options(command: F) -> F:
    """Adds --color, --log-format, -v and --version."""
    colored = option(
        "--color",
        type=click.Choice(list(_COLORS)),
        default="auto",
        show_default=True,
        expose_value=False,
        callback=lambda context, _parameter, value: setattr(context, "color", _COLORS[value]),
        help="Whether to print colors. By default, only a terminal gets colors.",
    )
    return version_option(cast(F, colored(logging_options(command, PREFIX))))


class Subcommand(HelpInShort):
    """A subcommand. Its help ends with examples and with the environment variables of all its options."""

    def __init__(self, name: str | None, *, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(name, **settings)
        self._examples = examples
        for option_ in self._options():
            option_.envvar = option_.envvar or f"{PREFIX}{str(name).upper()}_{_word(option_.opts)}"
            option_.show_envvar = False

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the arguments. With `-o json` or `-o yaml`, the error about wrong arguments is a document, too."""
        try:
            return super().make_context(info_name, list(args), parent, **extra)
        except click.UsageError as error:
            lenient = {**extra, "resilient_parsing": True, "ignore_unknown_options": True, "allow_extra_args": True}
            _print_error(super().make_context(info_name, list(args), parent, **lenient), error)
            raise

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command. If Ctrl-C comes before there is an answer, a line tells it. With `-o json` or `-o yaml`, an
        error is a document, too.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            return interrupted("there is no answer yet")
        except OutputError:
            raise
        except (click.ClickException, DriverError) as error:
            _print_error(ctx, error)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options in groups. The most common options come first."""
        options = {max(param.opts, key=len): param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        for title, names in _OPTION_GROUPS.items():
            records = [record for name in names if name in options and (record := options[name].get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples and the environment variables."""
        with formatter.section("Examples"):
            for line in self._examples:
                formatter.write_text(line)
        with formatter.section("Environment"):
            variables = [(str(option_.envvar), max(option_.opts, key=len)) for option_ in self._options()]
            formatter.write_dl(variables, col_max=60)

    def _options(self) -> list[click.Option]:
        return [param for param in self.params if isinstance(param, click.Option) and param.name != "version"]


def _print_error(context: click.Context, error: click.ClickException | DriverError) -> None:
    """Prints the error as a document if the user asks for a format of documents."""
    output = context.params.get("output")
    if output in DOCUMENTS and context.get_parameter_source("output") is not ParameterSource.DEFAULT:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        notes = error.notes if isinstance(error, NotesError) else (Note("", text),)
        print_document(error_document(notes), output)


def _word(names: Sequence[str]) -> str:
    long = next(name for name in names if name.startswith("--"))
    return long.removeprefix("--").replace("-", "_").upper()


def parse_gates(text: str) -> dict[str, bool]:
    """The feature gates of `--feature-gates`, as in `DRAFoo=true,DRABar=false`. Raises InputError."""
    gates: dict[str, bool] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or value.lower() not in ("true", "false"):
            raise InputError(f"--feature-gates: {part!r} is not of the form GATE=true or GATE=false")
        gates[name] = value.lower() == "true"
    return gates


def _rules(kubernetes_version: str | None, feature_gates: str, ideal: bool) -> Rules:
    rules = Rules(kubernetes_version or "", parse_gates(feature_gates), ideal)
    rules.features()  # gates that are not known are an error before anything is read
    return rules


def _version_option(releases: Sequence[str], meaning: str) -> Callable[[Any], Any]:
    default = f"The default is the release of the cluster, and without a cluster {DEFAULT_RELEASE}."
    shown = f"{releases[0]} to {releases[-1]}, or a patch release such as 1.36.4."
    return option(
        "--kubernetes-version", type=ReleaseParameter(releases), metavar="RELEASE", help=f"{meaning} {shown} {default}"
    )


def version_options(releases: Sequence[str], meaning: str) -> Callable[[F], F]:
    """Adds --kubernetes-version alone, given to the command as `rules`. `meaning` is the help for it."""
    return flags(
        "rules", lambda kubernetes_version: Rules(kubernetes_version or ""), _version_option(releases, meaning)
    )


release_options = flags(
    "rules",
    _rules,
    _version_option(
        RELEASES,
        "The Kubernetes release whose scheduler decides, with its own feature gates and defects:",
    ),
    option(
        "--feature-gates",
        metavar="GATE=true,...",
        default="",
        help="DRA feature gates of the scheduler. Others are as the cluster has them, if the user may read its metrics,"
        " and else as by default.",
    ),
    option(
        "--ideal",
        is_flag=True,
        help="Decide by the rules of the API, without the known defects of the release.",
    ),
)
"""Adds --kubernetes-version, --feature-gates and --ideal, given to the command as `rules`."""
