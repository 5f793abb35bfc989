# SPDX-License-Identifier: Apache-2.0
"""The subcommands about dra-dryrun itself: its version, its help, and its completion in a shell."""

import click
from click.shell_completion import get_completion_class

from .. import __version__
from ..process.command import InputError
from .subcommands import HelpInShort


@click.command("version", cls=HelpInShort)
def version() -> None:
    """Print the version."""
    click.echo(f"dra-dryrun {__version__}")


@click.command("help", cls=HelpInShort)
@click.argument("command", default="")
@click.pass_context
def help(context: click.Context, command: str) -> None:
    """Print the help of dra-dryrun, or of COMMAND."""
    above, group = _group_of(context)
    found = group.commands.get(command)
    if command and found is None:
        raise InputError(f"there is no command {command!r} (there is {', '.join(group.commands)})")
    click.echo(above.get_help() if found is None else found.get_help(click.Context(found, above, command)))


@click.command("completion", cls=HelpInShort)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell script that completes commands, files, and names of contexts, namespaces, objects and nodes.

    Load it, for example, with: source <(dra-dryrun completion bash)
    """
    _, group = _group_of(context)
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(group, {}, "dra-dryrun", "_DRA_DRYRUN_COMPLETE").source())


def _group_of(context: click.Context) -> tuple[click.Context, click.Group]:
    """The context and the command of dra-dryrun."""
    above = context.parent
    assert above is not None
    assert isinstance(above.command, click.Group)
    return above, above.command
