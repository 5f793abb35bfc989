# SPDX-License-Identifier: Apache-2.0
"""The dra-dryrun command, also `kubectl dra-dryrun`, with its subcommands."""

import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from ..process.command import Extra, InputError, run, version_option
from .subcommands import Entry, GroupOfModules

EXTRA: Final = Extra("dryrun", ("celpy", "kubernetes", "lark", "re2"))

SUBCOMMANDS: Final[Mapping[str, Entry]] = {
    "fit": Entry(f"{__package__}.fit", "Tell where pods and claims would be scheduled, or why not."),
    "gangs": Entry(f"{__package__}.gangs.command", "Tell whether groups of pods are placed as a whole."),
    "drain": Entry(f"{__package__}.drain.command", "Take devices out of use, and tell what that does to pods."),
    "autoscale": Entry(
        f"{__package__}.autoscale.command", "Tell which node group takes a pending pod, and why a node stays."
    ),
    "repack": Entry(f"{__package__}.repack.command", "Find the fewest pods to move so that a demand fits."),
    "capacity": Entry(f"{__package__}.capacity", "Count free and stranded devices of each kind."),
    "cel": Entry(f"{__package__}.expression", "Evaluate a CEL expression on the devices."),
    "gpus": Entry(f"{__package__}.gpus.command", "Show who uses which GPU, and which GPUs are free."),
    "lint": Entry(f"{__package__}.lint.command", "Find mistakes in claims, classes and pods."),
    "migrate": Entry(f"{__package__}.migrate.command", "Plan the change from NVIDIA's device plugin to this driver."),
    "node-template": Entry(f"{__package__}.template", "Print the ResourceSlices of a new node, for an autoscaler."),
    "snapshot": Entry(
        f"{__package__}.snapshot", "Save what decides about pods in a cluster, with or without its names."
    ),
    "upgrade": Entry(
        f"{__package__}.upgrade.command", "Tell what another Kubernetes release or other gates would change."
    ),
    "completion": Entry(f"{__package__}.about", "Print a script for a shell that completes words."),
    "help": Entry(f"{__package__}.about", "Print the help of dra-dryrun or of a command."),
    "version": Entry(f"{__package__}.about", "Print the version."),
}

_REPLACED: Final = {"devices": "gpus", "nodes": "gpus"}
"""Earlier names of subcommands, and the subcommands that have replaced them."""


class _Questions(GroupOfModules):
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
        """Completes a subcommand or a file, or an option or an object (TYPE/NAME) of `fit`."""
        if not incomplete.startswith("-") and "/" not in incomplete:
            return [CompletionItem(incomplete, type="file"), *super().shell_complete(ctx, incomplete)]
        fit = self.commands["fit"]
        fit_context = click.Context(fit, ctx, "fit", resilient_parsing=True)
        operands = fit.params[0].shell_complete(fit_context, incomplete)
        return [*operands, *super().shell_complete(ctx, incomplete), *fit.shell_complete(fit_context, incomplete)]

    def _check_is_no_command(self, word: str) -> None:
        """Refuse a word that was a command, or looks like a misspelt one, and is not a file."""
        if word in _REPLACED and not Path(word).exists():
            raise InputError(f"dra-dryrun {word} is now dra-dryrun {_REPLACED[word]}")
        close = difflib.get_close_matches(word, self.commands, n=1) if "/" not in word else []
        if close and not Path(word).exists():
            raise InputError(f"there is no command and no file {word!r}: did you mean {close[0]!r}?")


@click.group("dra-dryrun", cls=_Questions, table=SUBCOMMANDS)
@version_option
def dryrun() -> None:
    """Tell whether pods and claims would be scheduled, on which node and with which devices, or why not.

    `dra-dryrun FILE...` is short for `dra-dryrun fit FILE...`. `dra-dryrun COMMAND --help` has examples.
    """


def complete(arguments: Sequence[str] | None = None) -> None:
    """Entry point of kubectl_complete-dra_dryrun, which kubectl runs to complete a word of `kubectl dra-dryrun`.

    Prints each candidate with its help, and then a directive of Cobra: 4 if no file can follow, else 0.
    """
    *words, incomplete = (sys.argv[1:] if arguments is None else arguments) or [""]
    found = ShellComplete(dryrun, {}, "dra-dryrun", "").get_completions(words, incomplete)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{4 if all(item.type == 'plain' for item in found) else 0}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(dryrun, arguments, EXTRA)


if __name__ == "__main__":
    main()
