# SPDX-License-Identifier: Apache-2.0
"""The dra-dryrun command, also `kubectl dra-dryrun`, with its subcommands."""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from .. import __version__
from ..process.command import Extra, InputError, run, version_option
from .completion import complete_operand
from .expression import cel
from .fit import fit
from .lint import lint
from .listing import capacity, devices, nodes
from .migrate.command import migrate
from .options import HelpInShort
from .snapshot import snapshot

EXTRA: Final = Extra("dryrun", ("celpy", "kubernetes", "lark", "re2"))


class _Questions(HelpInShort, click.Group):
    """A group whose most frequent subcommand may be left out: `dra-dryrun FILE` is `dra-dryrun fit FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags_of_the_group = {"--help", "-h", "--version"}
        first_word_is_completed = ctx.resilient_parsing and not args
        if not first_word_is_completed and (not args or args[0] not in {*self.commands, *flags_of_the_group}):
            if not ctx.resilient_parsing:
                self._check_is_no_command(args[0] if args else "")
            args = ["fit", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes a subcommand, or an option, a file or an object of `fit`."""
        fit_context = click.Context(fit, ctx, "fit", resilient_parsing=True)
        files = complete_operand(fit_context, fit.params[0], incomplete)
        return [*files, *super().shell_complete(ctx, incomplete), *fit.shell_complete(fit_context, incomplete)]

    def _check_is_no_command(self, word: str) -> None:
        """Refuse a word that looks like a misspelt command and is not a file."""
        close = difflib.get_close_matches(word, self.commands, n=1) if "/" not in word else []
        if close and not Path(word).exists():
            raise InputError(f"there is no command and no file {word!r}: did you mean {close[0]!r}?")


@click.group("dra-dryrun", cls=_Questions)
@version_option
def dryrun() -> None:
    """Tell whether pods and claims would be scheduled, on which node and with which devices, or why not.

    `dra-dryrun FILE...` is short for `dra-dryrun fit FILE...`. `dra-dryrun COMMAND --help` has examples.
    """


@click.command("version", cls=HelpInShort)
def version() -> None:
    """Print the version."""
    click.echo(f"dra-dryrun {__version__}")


@click.command("help", cls=HelpInShort, short_help="Print the help of dra-dryrun or of a command.")
@click.argument("command", default="")
@click.pass_context
def help_(context: click.Context, command: str) -> None:
    """Print the help of dra-dryrun, or of COMMAND."""
    group = context.parent
    assert group is not None
    found = dryrun.commands.get(command)
    if command and found is None:
        raise InputError(f"there is no command {command!r} (there is {', '.join(dryrun.commands)})")
    click.echo(group.get_help() if found is None else found.get_help(click.Context(found, group, command)))


@click.command("completion", cls=HelpInShort, short_help="Print a script for a shell that completes words.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell script that completes commands, files, and names of contexts, namespaces, objects and nodes.

    Load it, for example, with: source <(dra-dryrun completion bash)
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(dryrun, {}, "dra-dryrun", "_DRA_DRYRUN_COMPLETE").source())


for question in (fit, capacity, cel, lint, migrate, nodes, devices, snapshot, completion, help_, version):
    dryrun.add_command(question)


def complete(arguments: Sequence[str] | None = None) -> None:
    """Entry point of kubectl_complete-dra_dryrun, which kubectl runs to complete a word of `kubectl dra-dryrun`.

    Prints each candidate with its help, and then a directive of Cobra: 4 if no file can follow, else 0.
    """
    *words, incomplete = (sys.argv[1:] if arguments is None else arguments) or [""]
    found = ShellComplete(dryrun, {}, "dra-dryrun", "").get_completions(words, incomplete)
    for one in found:
        if one.type == "plain":
            click.echo(f"{one.value}\t{one.help}" if one.help else one.value)
    click.echo(f":{4 if all(one.type == 'plain' for one in found) else 0}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(dryrun, arguments, EXTRA)


if __name__ == "__main__":
    main()
