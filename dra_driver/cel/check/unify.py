# SPDX-License-Identifier: Apache-2.0
"""Whether a value of one type can go where another is wanted, binding type parameters on the way.

Follows cel-go's `checker/types.go` step by step: its order of tests decides which overloads match, and
that shows in result types and costs.
"""

from ..types import DYN, Type, TypeKind, is_optional, list_of, map_of

Bindings = dict[str, Type]
"""The types that type parameters stand for, so far."""

_NULLABLE = frozenset((TypeKind.OPAQUE, TypeKind.STRUCT, TypeKind.ANY, TypeKind.DURATION, TypeKind.TIMESTAMP))
_SIMPLE = frozenset(
    (
        *(TypeKind.BOOL, TypeKind.BYTES, TypeKind.DOUBLE, TypeKind.INT, TypeKind.STRING, TypeKind.UINT),
        *(TypeKind.ANY, TypeKind.DURATION, TypeKind.TIMESTAMP, TypeKind.STRUCT),
    )
)


def assignable(bindings: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> Bindings | None:
    """The bindings under which every given type fits the wanted one, None if there are none. Changes no input."""
    if len(given) != len(wanted):
        return None
    attempt = dict(bindings)
    return attempt if _all_assignable(attempt, given, wanted) else None


def _all_assignable(bindings: Bindings, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
    return all(_assignable(bindings, one, other) for one, other in zip(given, wanted, strict=True))


def _assignable(bindings: Bindings, given: Type, wanted: Type) -> bool:
    if wanted.kind is TypeKind.PARAMETER:
        valid, bound = _substitutes(bindings, given, wanted)
        if valid or bound:
            return valid
    if given.kind is TypeKind.PARAMETER:
        return _substitutes(bindings, wanted, given)[0]
    if given.is_dynamic or wanted.is_dynamic or TypeKind.ERROR in (given.kind, wanted.kind):
        return True
    if given.kind is TypeKind.NULL:
        return _takes_null(wanted)
    if wanted.kind is TypeKind.NULL:
        return _takes_null(given)
    if given.kind in _SIMPLE:
        return given == wanted
    if given.kind is TypeKind.TYPE:
        return wanted.kind is TypeKind.TYPE
    return (
        given.kind is wanted.kind
        and given.name == wanted.name
        and len(given.parameters) == len(wanted.parameters)
        and _all_assignable(bindings, given.parameters, wanted.parameters)
    )


def _takes_null(candidate: Type) -> bool:
    return candidate.kind in _NULLABLE or candidate.kind is TypeKind.NULL or candidate.nullable


def _substitutes(bindings: Bindings, given: Type, variable: Type) -> tuple[bool, bool]:
    """(whether `given` can stand for the type parameter, whether that was bound already)"""
    if given == variable:
        return True, True
    bound = bindings.get(variable.name)
    if bound is not None:
        if given == bound:
            return True, True
        if _assignable(bindings, given, bound):
            general = most_general(given, bound)
            if not _occurs(bindings, variable, general):
                bindings[variable.name] = general
            return True, True
        return False, True
    if _occurs(bindings, variable, given):
        return False, False
    bindings[variable.name] = given
    return True, False


def _occurs(bindings: Bindings, variable: Type, within: Type) -> bool:
    if variable == within:
        return True
    if within.kind is TypeKind.PARAMETER:
        bound = bindings.get(within.name)
        return bound is not None and _occurs(bindings, variable, bound)
    return any(_occurs(bindings, variable, inner) for inner in within.parameters)


def most_general(one: Type, other: Type) -> Type:
    """The more general of two types that fit together."""
    return one if _less_specific(one, other) else other


def _less_specific(one: Type, other: Type) -> bool:
    if one.is_dynamic or one.kind is TypeKind.PARAMETER:
        return True
    if other.is_dynamic or other.kind is TypeKind.PARAMETER or one.kind is not other.kind:
        return False
    if one.kind is TypeKind.TYPE:
        return True
    if one.kind in (TypeKind.OPAQUE, TypeKind.LIST, TypeKind.MAP):
        if one.name != other.name or len(one.parameters) != len(other.parameters):
            return False
        return all(_less_specific(mine, theirs) for mine, theirs in zip(one.parameters, other.parameters, strict=True))
    return one == other


def substitute(bindings: Bindings, within: Type, *, final: bool = False) -> Type:
    """The type with bound parameters replaced; with `final`, the others become dyn."""
    if within.kind is TypeKind.PARAMETER:
        bound = bindings.get(within.name)
        if bound is not None:
            return substitute(bindings, bound, final=final)
        return DYN if final else within
    if not within.parameters:
        return within
    inner = tuple([substitute(bindings, parameter, final=final) for parameter in within.parameters])
    if inner == within.parameters:
        return within
    match within.kind:
        case TypeKind.LIST:
            return list_of(inner[0])
        case TypeKind.MAP:
            return map_of(*inner)
    return Type(within.kind, within.name, inner)


def unwrap_optional(candidate: Type) -> tuple[Type, bool]:
    """(the type inside, True) of an optional type; (the type itself, False) of others."""
    return (candidate.parameters[0], True) if is_optional(candidate) else (candidate, False)
