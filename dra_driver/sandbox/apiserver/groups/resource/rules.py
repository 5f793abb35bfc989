# SPDX-License-Identifier: Apache-2.0
"""Rules that several kinds of resource.k8s.io share: form, lengths of lists, names, selectors and configurations."""

from collections.abc import Iterable, Iterator, Sequence, Sized

from dra_driver.kube.resource import OpaqueConfiguration, limits
from dra_driver.kube.resource.codec import DecodeError

from ... import field_errors as errors
from ... import names
from ...field_errors import FieldError
from ...kinds import Context
from ...objects import encode

Problems = Iterator[FieldError]


def form_problem(error: DecodeError) -> FieldError:
    """Return the error of an object that cannot be decoded, for example because a field is missing."""
    if error.problem == "is required":
        return errors.required(error.path)
    return FieldError("FieldValueInvalid", error.path, f"Invalid value: {error.problem}")


def length_problems(items: Sized, limit: int, path: str) -> Problems:
    """Yield an error if a list is too long."""
    if len(items) > limit:
        yield errors.too_many(path, len(items), limit)


def selector_problems(expressions: Sequence[str], path: str, context: Context) -> Problems:
    """Yield the problems of the CEL expressions of device selectors."""
    yield from length_problems(expressions, limits.SELECTORS_PER_LIST, path)
    for index, expression in enumerate(expressions):
        here = f"{path}[{index}].cel.expression"
        if len(expression.encode()) > limits.EXPRESSION_BYTES:
            yield errors.too_long(here, limits.EXPRESSION_BYTES)
        elif context.check_cel is not None and (problem := context.check_cel(expression)) is not None:
            yield errors.invalid(here, expression, problem)


def configuration_problems(configurations: Iterable[OpaqueConfiguration], path: str) -> Problems:
    """Yield the problems of the `opaque` parts of a list of configurations."""
    for index, opaque in enumerate(configurations):
        here = f"{path}[{index}].opaque"
        yield from names.DRIVER.problems(opaque.driver, f"{here}.driver")
        if len(encode(opaque.parameters)) > limits.OPAQUE_PARAMETERS_BYTES:
            yield errors.too_long(f"{here}.parameters", limits.OPAQUE_PARAMETERS_BYTES)
