# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.scheduler.cel.tables`: write `tables.json` of dra_driver/scheduler/cel/syntax with the installed
celpy and lark.

Run it after a change of `selector.lark`, and after an upgrade of celpy or lark if a test asks for it. If another
release of lark makes the same tables, the release is added to the known ones.
"""

import json
import sys
from typing import Any, Final

import lark

from dra_driver.scheduler.cel.parse import grammar as syntax

_UNBOUNDED: Final = (1 << 32) - 1
"""The length of a terminal whose tokens have no longest one. Versions of Python have different numbers for it."""


def main() -> None:
    release = syntax.release(lark.__version__)
    made = tables_of(syntax.build_parser(), syntax.grammar_digest(), release)
    if syntax.PATH.exists():
        stored = syntax.stored_tables()
        if stored | {"lark": []} == made | {"lark": []}:
            made["lark"] = sorted({*stored["lark"], release})
    lines = [f"{json.dumps(field)}: {json.dumps(value, separators=(',', ':'))}" for field, value in made.items()]
    syntax.PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    sys.stdout.write(f"{syntax.PATH}: {len(made['states'])} states, for lark {', '.join(made['lark'])}\n")


def tables_of(parser: Any, grammar: str, release: str) -> syntax.Tables:
    """The tables of a parser that this release of lark built from this grammar with OPTIONS."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    data, memo = parser.memo_serialize([TerminalDef, Rule])
    del data["options"]
    table = data["parser"]["parser"]
    names = {number: str(name) for number, name in table.pop("tokens").items()}
    states = {
        number: {names[symbol]: step for symbol, step in steps.items()} for number, steps in table.pop("states").items()
    }
    order = _reached(states, *table["start_states"].values())
    for field in ("start_states", "end_states"):
        table[field] = {start: order.index(number) for start, number in table[field].items()}
    compact = [
        {
            symbol: order.index(target) if action == syntax.SHIFT else -1 - target["@"]
            for symbol, (action, target) in sorted(states[number].items())
        }
        for number in order
    ]
    entries = [memo[index] for index in range(len(memo))]
    for pattern in (entry["pattern"] for entry in entries if "pattern" in entry):
        if "_width" in pattern:
            pattern["_width"] = [min(width, _UNBOUNDED) for width in pattern["_width"]]
    made = {"grammar": grammar, "lark": [release], "memo": entries, "states": compact, "data": data}
    tables: syntax.Tables = json.loads(json.dumps(made))  # turns tuples into lists, as in the file
    return tables


def _reached(states: dict[int, dict[str, Any]], first: int) -> list[int]:
    """The states in the order in which they are reached, with symbols in alphabetical order."""
    order = [first]
    for number in order:  # grows meanwhile
        targets = [target for _, (action, target) in sorted(states[number].items()) if action == syntax.SHIFT]
        order += [target for target in dict.fromkeys(targets) if target not in order]
    return order


if __name__ == "__main__":
    main()
