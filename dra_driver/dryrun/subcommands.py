# SPDX-License-Identifier: Apache-2.0
"""A group whose subcommands are loaded when they are used: its help and the completion of their names load none."""

import gc
import importlib
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class HelpInShort(click.Command):
    """A command with the flag -h, also in a context without settings, such as that of manual pages: click keeps the
    flag that it makes first.
    """

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """The names of the flag for help."""
        return ["-h", "--help"]


class Entry(NamedTuple):
    """A subcommand in the table of its group: its module, which has the command under its name (with `_` for `-`), and
    its summary.
    """

    module: str
    summary: str


class Subcommands(MutableMapping[str, click.Command]):
    """The subcommands of a table, by name. Looking up a subcommand imports its module; names and `in` do not."""

    def __init__(self, table: Mapping[str, Entry]) -> None:
        self._table = table

    def __getitem__(self, name: str) -> click.Command:
        module, summary = self._table[name]
        command: click.Command = getattr(_load(module), name.replace("-", "_"))
        command.short_help = summary
        return command

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __setitem__(self, name: str, command: click.Command) -> None:
        raise TypeError(f"the table of the group decides about {name}")

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"the table of the group decides about {name}")


def _load(name: str) -> ModuleType:
    """A module, imported without garbage collection: a tenth of the time would be spent on looking at classes and
    functions again and again, none of which is garbage. Later collections leave them out, too.
    """
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


class GroupOfModules(HelpInShort, click.Group):
    """A group with the subcommands of a table."""

    def __init__(self, name: str | None = None, *, table: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(name, commands=Subcommands(table), **settings)
        self._table = table

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the names and the summaries of the subcommands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name].summary) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the name of a subcommand, or an option of the group."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        subcommands = [CompletionItem(name, help=self._table[name].summary) for name in names]
        return [*subcommands, *click.Command.shell_complete(self, ctx, incomplete)]
