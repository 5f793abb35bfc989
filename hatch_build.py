# SPDX-License-Identifier: Apache-2.0
"""What the wheel has besides the files of the repository: files that are generated when it is built.

| file | made of | used by |
|---|---|---|
| the saved parser of CEL | the grammar in `dra_driver/scheduler/cel/parse` | dra-dryrun |
| compiled definitions of Kubernetes' protobuf messages | the .proto files in `dra_driver/sandbox/proto` | dra-sandbox |

hatchling calls this when it builds a wheel. An editable installation gets nothing: there, a process makes both when it
needs them for the first time. The same commit gives the same files each time.
"""

import io
import pickle  # noqa: S403 - writes the tables; nothing is read here
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIFT = 0
"""lark's number of the action that continues with another state."""


class GeneratedFiles(BuildHookInterface):  # type: ignore[misc]
    """Adds the generated files to a wheel. They go through a folder that only this user can write to."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the files before the wheel is written. `version` is `editable` for an editable installation."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        self._temporary = tempfile.TemporaryDirectory()
        folder = Path(self._temporary.name)
        parser, definitions = saved_parser(folder), compiled_definitions(folder)
        build_data["force_include"][str(parser)] = f"dra_driver/scheduler/cel/parse/{parser.name}"
        build_data["force_include"][str(definitions)] = f"dra_driver/sandbox/proto/{definitions.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the temporary folder after the wheel was written."""
        if version != "editable":
            self._temporary.cleanup()


def compiled_definitions(folder: Path) -> Path:
    """Compile the definitions of Kubernetes' protobuf messages to a file in the folder."""
    from dra_driver.sandbox import proto

    compiled = folder / proto.COMPILED.name
    compiled.write_bytes(proto.compile_definitions())
    return compiled


def saved_parser(folder: Path) -> Path:
    """Save the parser of CEL to a file in the folder."""
    from dra_driver.scheduler.cel.parse import grammar

    saved = grammar.save(folder)
    saved.write_bytes(with_stable_numbers(saved.read_bytes()))
    return saved


def with_stable_numbers(saved: bytes) -> bytes:
    """The saved parser with numbers that are the same each time, so that each commit gives the same wheel.

    lark numbers states and symbols in the order in which they come out of a set, which differs between processes.
    Here, symbols are numbered by their names, and states in the order in which they are reached.
    """
    contents = pickle.loads(saved)  # noqa: S301 - this process has just saved it
    table = contents["data"]["parser"]["parser"]
    names = {number: str(name) for number, name in table["tokens"].items()}
    symbols = sorted(names.values())
    states = {
        number: sorted((symbols.index(names[symbol]), action, target) for symbol, (action, target) in steps.items())
        for number, steps in table["states"].items()
    }
    order = list(table["start_states"].values())
    for number in order:  # grows during the loop
        reached = [target for _, action, target in states[number] if action == SHIFT]
        order += [target for target in dict.fromkeys(reached) if target not in order]
    table["tokens"] = dict(enumerate(symbols))
    table["states"] = {
        index: {
            symbol: (action, order.index(target) if action == SHIFT else target)
            for symbol, action, target in states[number]
        }
        for index, number in enumerate(order)
    }
    for field in ("start_states", "end_states"):
        table[field] = {start: order.index(number) for start, number in table[field].items()}
    stable = io.BytesIO()
    pickler = pickle.Pickler(stable, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # equal texts are written each time, whether or not they are the same object
    pickler.dump(contents)
    return stable.getvalue()
