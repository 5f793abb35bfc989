# SPDX-License-Identifier: Apache-2.0
"""Errors of form: fields that do not exist, are missing, or hold something else than they should."""

from collections.abc import Iterator

from ...resource import ResourceSlice
from ...resource.device import COUNTERS_APART_SINCE, SliceFeatures
from ...resource.validation import slice_problems
from .finding import Issue, error
from .gates import is_gated
from .mend import is_unknown_field
from .subject import Context, Subject

UNKNOWN_FIELD = error("unknown-field", "The object has a field that does not exist there.")
SCHEMA = error("schema", "A field is missing, is of the wrong type, or belongs to another version's form.")
INVALID_SLICE = error("invalid-slice", "The API server would refuse the ResourceSlice.")
RULES = (UNKNOWN_FIELD, SCHEMA, INVALID_SLICE)


def check_form(subject: Subject, context: Context) -> Iterator[Issue]:
    """What decoding found. Fields that belong to some release are for `gates` to judge."""
    for problem in subject.form.errors if subject.form is not None else ():
        if not is_unknown_field(problem):
            yield Issue(SCHEMA, problem.path, problem.problem)
        elif not is_gated(problem.path):
            yield Issue(UNKNOWN_FIELD, problem.path, problem.problem)


def check_slice(subject: Subject, context: Context) -> Iterator[Issue]:
    """The API server's rules for ResourceSlices."""
    if isinstance(subject.decoded, ResourceSlice):
        features = SliceFeatures(counters_beside_devices=context.minor < COUNTERS_APART_SINCE)
        for problem in slice_problems(subject.decoded, features):
            yield Issue(INVALID_SLICE, problem.path, problem.message)
