# SPDX-License-Identifier: Apache-2.0
"""The parser, which lark makes of a grammar.

The grammar is the grammar file of celpy, extended by `selector.lark`. Making an LALR parser of it takes a tenth of a
second. Therefore the wheel has a saved parser beside this file (`Lark.save`; `hatch_build.py` calls `save`), which is
loaded if it was made of the installed grammar by the installed release of lark. In a checkout there is none, and
nothing is ever loaded from another folder: what is loaded can run code.
"""

import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .builder import TreeBuilder
from .literals import LITERALS

_FOLDER: Final = Path(__file__).parent
_EXTENSION: Final = _FOLDER / "selector.lark"

OPERAND_ENDS: Final = frozenset((*LITERALS, "IDENT", "RPAR", "RSQB", "RBRACE"))
"""The terminals that can end an operand."""


@functools.cache
def lark_parser() -> Any:
    """The parser (`lark.Lark`). It is made for the first expression, and then kept."""
    from lark import Lark  # lark is imported only for the first expression

    saved = _FOLDER / saved_name()
    if not saved.is_file():
        return build_parser()
    with saved.open("rb") as file:
        return Lark.load(file)


def build_parser() -> Any:
    """A parser that is made of the grammar files."""
    from lark import Lark

    return Lark.open(
        str(_EXTENSION),
        import_paths=[str(_celpy_grammar().parent)],
        start="expr",
        parser="lalr",
        lexer="basic",
        maybe_placeholders=False,
        keep_all_tokens=True,
        transformer=TreeBuilder(),
        postlex=Signs(),
    )


def save(folder: Path) -> Path:
    """Save the parser to a file in the folder. The file has the name that `lark_parser` looks for."""
    target = folder / saved_name()
    with target.open("wb") as file:
        build_parser().save(file, exclude_options=("import_paths",))  # folders of the machine that makes the wheel
    return target


def saved_name() -> str:
    """The name of the saved parser of the installed grammar and the installed release of lark."""
    import lark

    return name_of(_celpy_grammar().read_bytes() + _EXTENSION.read_bytes(), lark.__version__)


def name_of(grammar: bytes, lark_version: str) -> str:
    """The name of a saved parser. It depends on the grammar, and on the first two numbers of lark's version."""
    digest = hashlib.sha256(grammar).hexdigest()
    release = ".".join(lark_version.split(".")[:2])
    return f"selector-{digest[:16]}-lark-{release}.parser"


def _celpy_grammar() -> Path:
    spec = importlib.util.find_spec("celpy")  # finds the package without importing it
    if spec is None or spec.origin is None:
        raise ImportError("the package cel-python (module celpy), which has CEL's grammar, is not installed")
    return Path(spec.origin).with_name("cel.lark")


class Signs:
    """Joins a minus sign and the number after it at the start of an operand: -5 is a literal, --5 and 1-5 are not."""

    always_accept = ()

    def process(self, stream: Iterator[Any]) -> Iterator[Any]:
        """The stream of tokens with signed numbers."""
        held: list[Any] = []  # minus signs at the start of an operand
        operand_may_end = False
        for token in stream:
            if token.type == "MINUS" and not operand_may_end:
                held.append(token)
                continue
            if len(held) == 1 and token.type in ("INT_LIT", "FLOAT_LIT"):
                sign = held.pop()
                token = token.update(value="-" + token)
                token.start_pos, token.line, token.column = sign.start_pos, sign.line, sign.column
            yield from held
            held.clear()
            operand_may_end = token.type in OPERAND_ENDS
            yield token
        yield from held
