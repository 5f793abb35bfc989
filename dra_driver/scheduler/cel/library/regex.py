# SPDX-License-Identifier: Apache-2.0
"""matches(), find() and findAll() (cel-go's `common/stdlib`, k8s.io/apiserver `pkg/cel/library/regex.go`).

Regular expressions have the syntax and the results of Go's regexp package (Go 1.26, `regexp/syntax` and `unicode`). RE2
searches for them in linear time. Patterns are rewritten because RE2 differs from Go in a few points:

- Names of Unicode classes: Go ignores case, spaces, hyphens and underscores, and has long names (`\\p{Letter}`).
  Therefore a script whose own name has an underscore has no name in Go. Unassigned code points belong to Other
  (`\\pC`). The classes are those of Unicode 15.1, which RE2 has. Go has Unicode 15.0, which lacks 627 newer characters.
- Names of groups consist of ASCII letters, digits and underscores. `\\C` (a single byte) is refused.
- RE2 tries a match at each byte, Go only at each character. This makes a difference for empty matches of `\\B`.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..closures import CallSite, Constant, CostCounter, Evaluable, located
from ..declarations import CelLibrary, Cost, Overload, function, literal_argument, method
from ..errors import ErrorValue
from ..sizes import CallEstimate, Size, matching
from ..types import BOOL, INT, STRING, list_of
from .values import core_cost_size, cost_size, matching_cost, no_such_overload, spend, succeeds

_MEMORY: Final = 64 << 20

_CLASS: Final = r"\\[pP](?:\{(?P<name>[^}]*)\}|(?P<letter>[^{]))"
_OUTSIDE: Final = re.compile(
    rf"\\Q.*?(?:\\E|\Z)|{_CLASS}|\\.|(?P<opening>\[\^?\]?)|\(\?P?<(?P<group>[^>]*)>|.", re.DOTALL
)
_INSIDE: Final = re.compile(rf"\[:.*?:\]|{_CLASS}|\\.|(?P<closing>\])|.", re.DOTALL)
_GROUP_NAME: Final = re.compile(r"[A-Za-z0-9_]+", re.ASCII)

_LONG_NAMES: Final = {
    "Casedletter": "Lc",
    "Closepunctuation": "Pe",
    "Cntrl": "Cc",
    "Combiningmark": "M",
    "Connectorpunctuation": "Pc",
    "Control": "Cc",
    "Currencysymbol": "Sc",
    "Dashpunctuation": "Pd",
    "Decimalnumber": "Nd",
    "Digit": "Nd",
    "Enclosingmark": "Me",
    "Finalpunctuation": "Pf",
    "Format": "Cf",
    "Initialpunctuation": "Pi",
    "Letter": "L",
    "Letternumber": "Nl",
    "Lineseparator": "Zl",
    "Lowercaseletter": "Ll",
    "Mark": "M",
    "Mathsymbol": "Sm",
    "Modifierletter": "Lm",
    "Modifiersymbol": "Sk",
    "Nonspacingmark": "Mn",
    "Number": "N",
    "Openpunctuation": "Ps",
    "Other": "C",
    "Otherletter": "Lo",
    "Othernumber": "No",
    "Otherpunctuation": "Po",
    "Othersymbol": "So",
    "Paragraphseparator": "Zp",
    "Privateuse": "Co",
    "Punct": "P",
    "Punctuation": "P",
    "Separator": "Z",
    "Spaceseparator": "Zs",
    "Spacingmark": "Mc",
    "Surrogate": "Cs",
    "Symbol": "S",
    "Titlecaseletter": "Lt",
    "Unassigned": "Cn",
    "Uppercaseletter": "Lu",
}
"""Go's `unicode.CategoryAliases`. The names have the form that `_canonical` returns."""
_ASSIGNED: Final = r"\pC\pL\pM\pN\pP\pS\pZ"
_BUT_CASED: Final = r"\p{Lm}\p{Lo}\pM\pN\pP\pS\pZ\pC"

_STRINGS = list_of(STRING)

_MATCH: Final = Cost(
    lambda arguments, _: matching_cost(core_cost_size(arguments[0]), core_cost_size(arguments[1])),
    lambda text, pattern: CallEstimate(matching(text, pattern)),
)
_SEARCH: Final = Cost(
    lambda arguments, _: matching_cost(cost_size(arguments[0]), cost_size(arguments[1])),
    lambda text, pattern, *limit: CallEstimate(matching(text, pattern), Size(0, text.size.high)),
)


class Pattern:
    """A compiled regular expression. `search` returns a match in a text (UTF-8), or None."""

    def __init__(self, compiled: Any, by_character: Any = None) -> None:
        self._compiled = compiled
        self._by_character = by_character
        self.search: Callable[[bytes], object] = by_character.match if by_character else compiled.search

    def spans(self, text: bytes) -> Iterator[tuple[int, int]]:
        """The start and end of each match, in bytes. An empty match directly after another match does not count."""
        place, last = 0, -1
        while place <= len(text):
            found = self._next(text, place)
            if found is None:
                return
            start, end = found
            if end != place:
                place = end
            else:
                place += _width(text, place)
                if start == last:
                    continue
            last = end
            yield found

    def _next(self, text: bytes, place: int) -> tuple[int, int] | None:
        if self._by_character is None:
            match = self._compiled.search(text, place)
            return match.span() if match else None
        match = self._by_character.match(text, place)
        return match.span(1) if match else None


def _width(text: bytes, place: int) -> int:
    """The number of bytes of the character at `place`, 1 at the end of the text."""
    end = place + 1
    while end < len(text) and text[end] & 0xC0 == 0x80:
        end += 1
    return end - place


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> Pattern:
    """The compiled pattern. Raises ErrorValue if it is invalid."""
    try:
        rewritten, by_character = _rewritten(pattern)
        alone = _compiled(rewritten)
        # the prefix consumes whole characters before the match, so RE2 only tries matches at characters
        return Pattern(alone, _compiled(f"(?s:.)*?({rewritten})", captures=True) if by_character else None)
    except (_SyntaxError, UnicodeError) as error:
        raise ErrorValue("regex", f"error parsing regular expression {pattern!r}: {error}") from None


def encoded(text: str) -> bytes:
    """The text in UTF-8 for a search. A lone surrogate, which JSON allows, becomes '?'."""
    return text.encode("utf-8", "replace")


class _SyntaxError(Exception):
    """The pattern is not a regular expression of Go."""


def _compiled(pattern: str, *, captures: bool = False) -> Any:
    """The pattern for RE2. Without `captures`, RE2 does not find out what groups match, which takes long."""
    import re2  # type: ignore[import-untyped]  # compiled code, needed by few expressions

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    options.never_capture = not captures
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise _SyntaxError(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None


def _rewritten(pattern: str) -> tuple[str, bool]:
    """The pattern for RE2, and whether RE2 may only try matches at characters. Raises _SyntaxError."""
    parts: list[str] = []
    place, inside, by_character = 0, False, False
    while place < len(pattern):
        match = (_INSIDE if inside else _OUTSIDE).match(pattern, place)
        assert match is not None
        place = match.end()
        part, groups = match[0], match.groupdict()
        name = groups["name"] if groups["letter"] is None else groups["letter"]
        if part.startswith("\\Q") and not part.endswith("\\E"):
            part += "\\E"
        elif name is not None:
            part = _unicode_class(part, name, inside=inside)
        elif inside:
            inside = groups["closing"] is None
        elif groups["opening"] is not None:
            inside = True
        elif part == "\\B":
            by_character = True
        elif part == "\\C":
            raise _SyntaxError("invalid escape sequence: `\\C`")
        elif groups["group"] is not None and not _GROUP_NAME.fullmatch(groups["group"]):
            raise _SyntaxError(f"invalid named capture: `{part}`")
        parts.append(part)
    return "".join(parts), by_character


def _unicode_class(written: str, name: str, *, inside: bool) -> str:
    r"""The class \p{name} or \P{name} in the syntax of RE2."""
    negated = written[1] == "P"
    if name.startswith("^"):
        name, negated = name[1:], not negated
    known = _canonical(name)
    known = _LONG_NAMES.get(known, known)
    parts = _parts(known, negated=negated)
    if parts is None:
        return f"\\{'P' if negated else 'p'}{{{known}}}"
    return parts if inside else f"[{parts}]"


def _parts(name: str, *, negated: bool) -> str | None:
    """The parts of a class for which RE2 has no name. None if RE2 has a name."""
    match name:
        case "Ascii":
            return "[:^ascii:]" if negated else "[:ascii:]"
        case "Assigned":
            return _unassigned() if negated else _ASSIGNED
        case "Cn":
            return _ASSIGNED if negated else _unassigned()
        case "C":
            return r"\pL\pM\pN\pP\pS\pZ" if negated else rf"\pC{_unassigned()}"
        case "Lc":
            return _BUT_CASED + _unassigned() if negated else r"\p{Lu}\p{Ll}\p{Lt}"
    return None


def _canonical(name: str) -> str:
    """The name without spaces, hyphens and underscores, and with an upper case letter first, as Go compares it."""
    bare = name.translate({ord(character): None for character in " _-"})
    return bare.capitalize() if bare.isascii() else bare


@functools.cache
def _unassigned() -> str:
    """The code points without a category, as ranges of a character class. RE2 has no name for them."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    text = "".join(characters)
    found = (match[0] for match in _compiled(rf"[^{_ASSIGNED}]+").finditer(text))
    return "".join(f"\\x{{{ord(run[0]):x}}}-\\x{{{ord(run[-1]):x}}}" for run in found)


def _matches(text: str, pattern: str) -> bool:
    return compiled(pattern).search(encoded(text)) is not None


def _find(text: str, pattern: str) -> str:
    return next(_found(text, pattern), "")


def _find_all(text: str, pattern: str, limit: int = -1) -> list[object]:
    found: list[object] = []
    if limit == 0:
        return found
    for match in _found(text, pattern):
        found.append(match)
        spend(1)
        if len(found) == limit:
            break
    return found


def _found(text: str, pattern: str) -> Iterator[str]:
    octets = encoded(text)
    return (octets[start:end].decode() for start, end in compiled(pattern).spans(octets))


def _with_constant_pattern(site: CallSite) -> Evaluable | None:
    """A call with a constant pattern, which is compiled once. Raises ErrorValue for an invalid pattern."""
    subject, pattern, *_ = site.operands
    if not isinstance(pattern, Constant) or not isinstance(pattern.value, str):
        return None
    search = compiled(pattern.value).search
    if site.overloads != ("matches_string",):
        return Evaluable(site.lazy_call())
    evaluate, text_of_pattern, offset = subject.run, pattern.value, site.offset
    pattern_size = len(text_of_pattern)

    def run(frame: CostCounter) -> object:
        text = evaluate(frame)
        if text.__class__ is ErrorValue:
            return text
        result: object
        if isinstance(text, str):
            result = search(encoded(text)) is not None
        else:
            result = located(no_such_overload("matches", text, text_of_pattern), offset)
        frame.charge(matching_cost(core_cost_size(text), pattern_size))
        return result

    return Evaluable(run)


def _is_pattern(value: object) -> bool:
    return not isinstance(value, str) or succeeds(compiled)(value)


REGEX = CelLibrary(
    function(
        "matches",
        ("matches", (STRING, STRING), BOOL, _matches),
        Overload("matches_string", (STRING, STRING), BOOL, _matches, member=True, cost=_MATCH),
        constants=literal_argument(_is_pattern),
        make=_with_constant_pattern,
    ),
    method("find", ("string_find_string", (STRING, STRING), STRING, _find), cost=_SEARCH, make=_with_constant_pattern),
    method(
        "findAll",
        ("string_find_all_string", (STRING, STRING), _STRINGS, _find_all),
        ("string_find_all_string_int", (STRING, STRING, INT), _STRINGS, _find_all),
        cost=_SEARCH,
        make=_with_constant_pattern,
    ),
)
