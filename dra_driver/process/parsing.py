# SPDX-License-Identifier: Apache-2.0
"""Parses YAML and JSON from users. Any text gives plain values, or a ParseError with the place. Uses libyaml for speed.

The values are those of kubectl (sigs.k8s.io/yaml): times and the sexagesimal numbers of YAML 1.1 remain text, and keys
are text. Values that JSON does not have are refused. Small documents that become very large or deep (by aliases or
nesting) are refused, too, because the composer of PyYAML's C parser recurses without a limit.
"""

import codecs
import json
import math
import re
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

from ..errors import ParseError

DEEPEST: Final = 100
"""The largest number of nested levels."""
_LARGEST: Final = 1_000_000
"""The number of nodes that aliases may add. The API server accepts requests of 3 MiB."""
_DIGITS: Final = 100
"""The largest number of characters of a whole number. Python refuses to print some longer ones."""

_SHOWN: Final = 60
"""The number of characters of the text that an error shows."""

_TAG: Final = "tag:yaml.org,2002:"
_TEXT, _MERGE, _VALUE = f"{_TAG}str", f"{_TAG}merge", f"{_TAG}value"
_NOT_JSON: Final = (None, *(f"{_TAG}{name}" for name in ("binary", "merge", "omap", "pairs", "set", "value")))


# Anchors and aliases follow a space or bracket. This excludes `a && b` and `2 * n` in selectors.
_ANCHOR: Final = re.compile(r"&((?<=\A&)|(?<=[\s\[{,:\ufeff]&))[A-Za-z0-9_-]")
_ALIAS: Final = re.compile(r"\*(?<=[\s\[{,:]\*)[A-Za-z0-9_-]")


_Pair = tuple[Any, Any]
"""The nodes of a key and its value."""

_INNER: Final = (dict, list)


def decode_text(data: bytes) -> str:
    """Decode the encodings that kubectl accepts: UTF-8, and UTF-16 with a byte order mark. Raises ParseError."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 if wide else data.count(b"\n", 0, error.start) + 1
        raise ParseError(f"is not {'UTF-16' if wide else 'UTF-8'} text: save it as UTF-8", line) from None


def load(text: str) -> Any:
    """The value of a text with one document, None for an empty text. Raises ParseError."""
    documents = load_all(text)
    if len(documents) > 1:
        raise ParseError("has several documents (---), but only one is allowed")
    return documents[0] if documents else None


def load_all(text: str) -> list[Any]:
    """The values of the documents of a YAML stream, or of one JSON document (much faster). Raises ParseError."""
    if text.lstrip()[:1] not in ("{", "["):
        return _load_yaml(text)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite)
        _check_depth(value)
    except json.JSONDecodeError:
        return _load_yaml(text)  # YAML may start with a bracket, too
    except (RecursionError, ValueError) as error:
        # Raises an error with the place. Tabs in JSON are indentation, because strings cannot contain them.
        _load_yaml(text.replace("\t", " "))
        raise ParseError(str(error)) from None
    return [value]


@contextmanager
def placed(text: str) -> Iterator[None]:
    """A context that converts the errors of PyYAML for `text` to ParseError."""
    try:
        yield
    except yaml.reader.ReaderError as error:
        line = text.encode().count(b"\n", 0, error.position) + 1
        raise ParseError(f"is not YAML: {error.reason}", line) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        if not isinstance(error, _RefusedNodeError):
            problem = f"is not YAML: {problem}"
        raise ParseError(problem, *((mark.line + 1, mark.column + 1) if mark is not None else ())) from None


def _identity(key: yaml.Node) -> Hashable:
    """Equal for keys that are the same text."""
    return key.value if isinstance(key, yaml.ScalarNode) and key.tag == _TEXT else id(key)


class Loader(yaml.CSafeLoader):
    """Converts nodes to plain values. Like the API server, it refuses keys that occur twice."""

    keeps_last = False
    """Whether a key may occur twice. Then its last value counts."""

    _depth = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._merged: set[int] = set()

    def descend_resolver(self, parent: yaml.Node | None, _index: object) -> None:
        """The composer calls this before each node, so this is the place to limit its recursion."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refusal(f"the document is nested deeper than {DEEPEST} levels", parent)

    def ascend_resolver(self) -> None:
        """The composer calls this after each node."""
        self._depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping with keys that JSON allows."""
        if not isinstance(node, yaml.MappingNode) or any(
            key.tag != _TEXT or key.id != "scalar" for key, _ in node.value
        ):
            return self._construct_uncommon(node, deep)
        mapping: dict[Hashable, Any] = {key.value: self.construct_object(value, deep) for key, value in node.value}
        if len(mapping) != len(node.value) and id(node) not in self._merged:
            self._refuse_twice(node)
        return mapping

    def _construct_uncommon(self, node: Any, deep: bool) -> dict[Hashable, Any]:
        """A mapping with merged mappings or with keys that are not text, or a node that only has the tag of one."""
        if not isinstance(node, yaml.MappingNode):
            raise _refusal(f"a mapping is expected here, not a {node.id}", node)
        self.flatten_mapping(node)
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if key is None or isinstance(key, list | dict):  # kubectl refuses these, and makes text of others
                context, problem = "while constructing a mapping", "found a key that is not text"
                raise yaml.constructor.ConstructorError(context, node.start_mark, problem, key_node.start_mark)
            mapping[key if isinstance(key, str) else json.dumps(key)] = self.construct_object(value_node, deep)
        return mapping

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Insert merged mappings once. The node's own keys count more than merged ones, and of a list of merged
        mappings, the first counts most, as for kubectl. PyYAML's own method depends on the release: 6.0.4 compares
        keys by identity.
        """
        if id(node) in self._merged:
            return
        self._merged.add(id(node))
        self._refuse_twice(node)
        own, merged = list[_Pair](), list[_Pair]()
        for key, value in node.value:
            if key.tag == _MERGE:
                for source in self._sources(node, value):
                    self.flatten_mapping(source)
                    merged += source.value
            else:
                if key.tag == _VALUE:
                    key.tag = _TEXT
                own.append((key, value))
        # One pair for each key, so that the size of merged mappings cannot double with each level.
        node.value = list({_identity(key): (key, value) for key, value in (*merged, *own)}.values())

    @staticmethod
    def _sources(node: yaml.MappingNode, value: yaml.Node) -> list[yaml.MappingNode]:
        """The mappings that a merge key names. The last one has precedence."""
        sources: list[yaml.MappingNode] = []
        for source in value.value[::-1] if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode):
                context, problem = "while constructing a mapping", "expected a mapping or list of mappings for merging"
                problem = f"{problem}, but found {getattr(source, 'id', source)}"
                raise yaml.constructor.ConstructorError(context, node.start_mark, problem, source.start_mark)
            sources.append(source)
        return sources

    def _refuse_twice(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE and not self.keeps_last:
                if key.value in seen:
                    raise _refusal(f"key {_shown(key.value)} is there twice", key)
                seen.add(key.value)

    def construct_as_written(self, node: yaml.ScalarNode) -> str:
        """The text of a scalar, whatever its tag is."""
        return str(self.construct_scalar(node))

    def construct_whole_number(self, node: yaml.ScalarNode) -> int:
        """An integer."""
        try:
            if len(node.value) <= _DIGITS:
                return int(self.construct_yaml_int(node))
        except (ValueError, IndexError):
            raise _refusal(f"{_shown(node.value)} is not a whole number", node) from None
        raise _refusal(f"a number of {len(node.value)} digits is too long", node)

    def construct_number(self, node: yaml.ScalarNode) -> float | str:
        """A float that JSON allows, or the text of a number that is too large for a float, such as `1234e567`."""
        try:
            value = float(self.construct_yaml_float(node))
        except (ValueError, IndexError):
            value = math.nan
        if math.isfinite(value):
            return value
        if value == math.inf and node.value[-1].isdigit():
            return self.construct_as_written(node)
        raise _refusal(f"{_shown(node.value)} is not a number in JSON", node)

    def construct_flag(self, node: yaml.ScalarNode) -> bool:
        """A boolean."""
        try:
            return bool(self.construct_yaml_bool(node))
        except KeyError:
            raise _refusal(f"{_shown(node.value)} is neither true nor false", node) from None

    def construct_foreign(self, node: yaml.Node) -> None:
        """Refuses a value that JSON does not have, or a tag of another program."""
        raise _refusal(f"the tag {_shown(node.tag)} has no meaning in Kubernetes: remove it", node)


def nodes(loader: Loader, text: str) -> Iterator[yaml.Node]:
    """The documents of the text of the loader. Each must be converted before the next one is read.

    Raises the errors that `placed` converts.
    """
    has_aliases = _ALIAS.search(text) is not None and _ANCHOR.search(text) is not None
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            if has_aliases:
                _check_aliases(node)
            yield node
    finally:
        loader.dispose()


def _construct_foreign(loader: Any, node: yaml.Node) -> object:
    """Calls the method of the loader, which may be that of a subclass."""
    return loader.construct_foreign(node)


def _number_resolvers() -> Iterator[tuple[str, str, str]]:
    """The tag, the pattern and the first characters of numbers. They decide like kubectl what is a number."""
    digits = "0123456789"
    yield f"{_TAG}int", r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)\Z", f"-+{digits}"
    yield f"{_TAG}float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?\Z", f"-+.{digits}"
    yield f"{_TAG}float", r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z", "-+."


def _teach() -> None:
    """Add the resolvers and constructors to the loader."""
    replaced = {f"{_TAG}{name}" for name in ("timestamp", "value", "int", "float")}
    Loader.yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in resolvers if tag not in replaced]
        for letter, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }
    for tag, pattern, first in _number_resolvers():
        Loader.add_implicit_resolver(tag, re.compile(pattern), list(first))
    Loader.add_constructor(f"{_TAG}timestamp", Loader.construct_as_written)
    Loader.add_constructor(f"{_TAG}int", Loader.construct_whole_number)
    Loader.add_constructor(f"{_TAG}float", Loader.construct_number)
    Loader.add_constructor(f"{_TAG}bool", Loader.construct_flag)
    for foreign in _NOT_JSON:
        Loader.add_constructor(foreign, _construct_foreign)


_teach()


class _RefusedJsonError(ValueError):
    """The JSON document is refused."""


def _load_yaml(text: str) -> list[Any]:
    with placed(text):
        loader = Loader(text)
        return [loader.construct_document(node) for node in nodes(loader, text)]


def _check_aliases(root: yaml.Node) -> None:
    """Refuse aliases that make a document too large, too deep or endless."""
    measure = _Measure()
    if measure.of(root)[0] - measure.written > _LARGEST:
        raise _refusal(f"aliases add more than {_LARGEST} nodes to the document", root)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key occurs twice."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _RefusedJsonError(f"key {_shown(next(key for key in keys if keys.count(key) > 1))} is there twice")
    return mapping


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedJsonError(f"{text} is not a number in JSON")
    return value


def _check_depth(value: Any) -> None:
    """Refuse a value that is nested too deeply. Visits one level after the other."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in _INNER
        ]
        if not level:
            return
    raise _RefusedJsonError(f"the document is nested deeper than {DEEPEST} levels")


class _Measure:
    """Counts nodes and levels, in which aliases count like their anchors. `written` is the number without aliases."""

    def __init__(self) -> None:
        self.written = 1
        self._known: dict[int, tuple[int, int] | None] = {}

    def of(self, node: yaml.Node) -> tuple[int, int]:
        """The number of nodes and levels of a node and all nodes below it."""
        if id(node) in self._known:
            found = self._known[id(node)]
            if found is None:
                raise _refusal("an alias refers to a node that contains it", node)
            return found
        self._known[id(node)] = None
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in children for child in pair]
        self.written += len(children)
        inner = [self.of(child) for child in children if isinstance(child, yaml.CollectionNode)]
        levels = 1 + max((levels for _, levels in inner), default=1 if children else 0)
        if levels > DEEPEST:
            raise _refusal(f"the document is nested deeper than {DEEPEST} levels", node)
        self._known[id(node)] = found = 1 + len(children) - len(inner) + sum(size for size, _ in inner), levels
        return found


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


class _RefusedNodeError(yaml.MarkedYAMLError):
    """The YAML document is refused."""


def _refusal(problem: str, node: yaml.Node | None) -> _RefusedNodeError:
    return _RefusedNodeError(None, None, problem, None if node is None else node.start_mark)
