# SPDX-License-Identifier: Apache-2.0
"""`python -m dra_driver.cel.syntax`: write `tables.json` with the installed celpy and lark.

To be run after a change to `selector.lark`, and when a test says so: after an upgrade of celpy or lark. Where the
tables are the same with another release of lark, that release is added to those that are known to be fine."""

import json
import sys

import lark

from . import grammar


def main() -> None:
    release = grammar.release(lark.__version__)
    made = grammar.tables_of(grammar.build_parser(), grammar.grammar_digest(), release)
    if grammar.PATH.exists():
        kept = grammar.kept()
        if kept | {"lark": []} == made | {"lark": []}:
            made["lark"] = sorted({*kept["lark"], release})
    lines = [f"{json.dumps(field)}: {json.dumps(value, separators=(',', ':'))}" for field, value in made.items()]
    grammar.PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    sys.stdout.write(f"{grammar.PATH}: {len(made['states'])} states, for lark {', '.join(made['lark'])}\n")


if __name__ == "__main__":
    main()
