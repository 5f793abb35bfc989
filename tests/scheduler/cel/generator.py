# SPDX-License-Identifier: Apache-2.0
"""Random expressions from a grammar."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HOLE: Final = re.compile(r"<(\w+)(?::(\w+)=(\w+))?>")
LITERAL_RATE: Final = 0.1
VARIABLE_RATE: Final = 0.4


@dataclass(frozen=True)
class Grammar:
    """The expressions of each kind. A kind is a name such as `int`.

    `literals` are the expressions of a kind that have no parts. `patterns` are those with parts: the generator chooses
    a group and then a pattern of this group. In a pattern, `<int>` stands for an expression of the kind `int`, and
    `<bool:x=int>` for an expression of the kind `bool` in which the variable `x` has the kind `int`.
    """

    literals: Mapping[str, tuple[str, ...]]
    patterns: Mapping[str, tuple[tuple[str, ...], ...]]

    def expression(
        self, random_source: random.Random, kind: str, depth: int, variables: Mapping[str, str] | None = None
    ) -> str:
        """An expression of this kind with at most `depth` patterns inside of each other."""
        variables = variables or {}
        usable = [name for name, variable_kind in variables.items() if variable_kind == kind]
        if usable and random_source.random() < VARIABLE_RATE:
            return random_source.choice(usable)
        if depth == 0 or kind not in self.patterns or random_source.random() < LITERAL_RATE:
            return random_source.choice(self.literals[kind])

        def part(hole: re.Match[str]) -> str:
            part_kind, name, variable_kind = hole.groups()
            inner = {**variables, name: variable_kind} if name else variables
            return self.expression(random_source, part_kind, depth - 1, inner)

        return HOLE.sub(part, random_source.choice(random_source.choice(self.patterns[kind])))


def mangled(random_source: random.Random, text: str) -> str:
    """The text with up to three characters replaced by at most one other character."""
    place, length = random_source.randrange(len(text)), random_source.randrange(4)
    inserted = random_source.choice(("", "(", "]", "'", " ", ".", "{", "\\", "&", "\x00"))
    return text[:place] + inserted + text[place + length :]
