# SPDX-License-Identifier: Apache-2.0
"""`x-kubernetes-validations`: the CEL rules of a custom resource's schema.

Evaluated with cel-python: standard CEL with its macros. Kubernetes' own function libraries are
not there; a rule that calls one fails when it is evaluated, and the object is refused with the
reason. A rule with `oldSelf` is checked on updates only, where the old value can be found: not
inside atomic lists.
"""

import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from .. import field_errors as errors
from ..field_errors import FieldError
from ..objects import Object, canonical
from ..schema.types import ListKind, Type

_OLD: Final = "oldSelf"
_MISSING: Final = "cel-python is not installed, and without it CEL rules cannot be evaluated"


@lru_cache(maxsize=512)
def _program(rule: str) -> Any:
    import celpy  # heavy, and only definitions with rules need it

    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def compile_problem(rule: str) -> str | None:
    """Why a rule cannot be used; None when it can."""
    if importlib.util.find_spec("celpy") is None:
        return _MISSING
    from celpy.celparser import CELParseError

    try:
        _program(rule)
    except CELParseError as error:
        return str(error).splitlines()[0]
    return None


def rule_problems(new: Object, old: Object | None, node: Type) -> Iterator[FieldError]:
    """The rules that an object, or its change, breaks."""
    yield from _problems(new, old, node, "")


def _problems(new: Any, old: Any, node: Type, path: str) -> Iterator[FieldError]:
    if node.rules is not None and new is not None:
        for rule in node.rules.validations:
            yield from _broken(rule, new, old, path)
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for name, item in new.items():
            if name in node.fields or node.element is not None:
                here = f"{path}.{name}" if path else name
                yield from _problems(item, before.get(name), node.child(name), here)
    elif isinstance(new, list):
        keyed = _keyed(old, node)
        for index, item in enumerate(new):
            yield from _problems(item, keyed.get(_key(item, node)), node.item, f"{path}[{index}]")


def _keyed(items: Any, node: Type) -> dict[str, Any]:
    if node.list_kind is not ListKind.MAP or not isinstance(items, list):
        return {}
    return {_key(item, node): item for item in items}


def _key(item: Any, node: Type) -> str:
    return canonical({key: item.get(key) for key in node.list_keys}) if isinstance(item, dict) else ""


def _broken(rule: Object, new: Any, old: Any, path: str) -> Iterator[FieldError]:
    text = rule["rule"]
    transition = _OLD in text
    if transition and old is None:
        return
    problem = _evaluate(text, {"self": new, **({_OLD: old} if transition else {})})
    if problem is True:
        return
    message = rule.get("message") or f"failed rule: {text}"
    if isinstance(problem, str):
        message = f"rule evaluation error: {problem}"
    elif rule.get("messageExpression"):
        made = _evaluate(rule["messageExpression"], {"self": new, **({_OLD: old} if transition else {})})
        message = made if isinstance(made, str) and made else message
    field = f"{path}{rule['fieldPath']}" if rule.get("fieldPath") else path
    match rule.get("reason"):
        case "FieldValueForbidden":
            yield errors.forbidden(field, message)
        case "FieldValueRequired":
            yield errors.required(field, message)
        case "FieldValueDuplicate":
            yield errors.duplicate(field, new)
        case _ if isinstance(new, dict | list):
            yield errors.invalid_whole(field or "<nil>", message)
        case _:
            yield errors.invalid(field or "<nil>", new, message)


def _evaluate(expression: str, variables: dict[str, Any]) -> bool | str:
    """True, False, a text that the expression makes, or why it cannot be evaluated."""
    from celpy.adapter import json_to_cel
    from celpy.evaluation import CELEvalError

    try:
        activation = {name: json_to_cel(value) for name, value in variables.items()}
        result = _program(expression).evaluate(activation)
    except (CELEvalError, ValueError) as error:  # the latter from numbers that CEL has not
        return str(error.args[0]) if error.args else str(error)
    return str(result) if isinstance(result, str) else bool(result)
