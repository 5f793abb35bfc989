# SPDX-License-Identifier: Apache-2.0
"""The dra-kubeletplugin command: the plugin, and the commands check, status and cleanup."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click
from click.core import ParameterSource

from dra_driver.process.command import logging_options, run, version_option

from .options import PluginOptions, plugin_options
from .serve import serve

_COMMANDS: Final = {"check": ".check.command", "cleanup": ".commands.cleanup", "status": ".commands.status"}
"""The module of each command."""


class _Loaded(Mapping[str, click.Command]):
    """Commands that are imported only when they are called, so that the plugin itself does not load their modules."""

    def __getitem__(self, name: str) -> click.Command:
        command: click.Command = getattr(importlib.import_module(_COMMANDS[name], __package__), name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


@click.group("dra-kubeletplugin", commands=_Loaded(), invoke_without_command=True)
@plugin_options
@logging_options
@version_option
@click.pass_context
def kubeletplugin(context: click.Context, options: PluginOptions) -> None:
    """Prepare ResourceClaims with devices of driver gpu.nvidia.com for the pods of this node, and with
    --compute-domains those of compute-domain.nvidia.com, too.

    Without a command, the plugin runs. Each command has flags of its own. In the plugin's pod, environment variables
    set the flags of all commands.
    """
    if context.invoked_subcommand is not None:
        _require_no_flags(context, context.invoked_subcommand)
    elif not options.node_name:
        flag = next(parameter for parameter in context.command.params if parameter.name == "node_name")
        raise click.MissingParameter(ctx=context, param=flag)
    else:
        serve(options)


def _require_no_flags(context: click.Context, subcommand: str) -> None:
    """Raise an error for flags of the plugin before a command, because they would be ignored."""
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = next(parameter.opts[-1] for parameter in context.command.params if parameter.name == name)
            raise click.UsageError(f"{flag} stands before {subcommand}: flags of {subcommand} stand after it", context)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    run(kubeletplugin, arguments)


if __name__ == "__main__":
    main()
