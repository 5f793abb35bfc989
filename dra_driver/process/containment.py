# SPDX-License-Identifier: Apache-2.0
"""Unexpected errors end only the work on one object.

The loop over all claims, GPUs, slices or files wraps the work on each of them in `contained`. The caller handles the
errors that the work is known to raise. Any other exception is a defect of the driver or an unforeseen situation. It is
logged with its traceback, counted, and reported to the code that tries the work again.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

Count = Callable[[str], None]
"""Counts a failure by its kind of work, see `dra_driver.process.endpoints.unexpected_errors`."""


def nobody(_: object) -> None:
    """Does not report anything."""


@contextlib.contextmanager
def contained(
    work: str,
    subject: object,
    count: Count,
    tell: Callable[[Exception], None] = nobody,
    *,
    expected: tuple[type[Exception], ...] = (),
    **fields: object,
) -> Iterator[None]:
    """A context that ends unexpected exceptions of the work in it.

    `work` consists of a verb and a kind of object, such as `publish slice`. It is the label of a metric, so it must not
    contain names. `subject` is the object, or empty if there is only one. `fields` are further fields of the log line.
    After the failure is logged and counted, `tell` is called. An exception of `tell` is logged, too. `expected`
    exceptions are raised to the caller.
    """
    try:
        yield
    except expected:
        raise
    except Exception as error:
        what = f"{work} {subject}".rstrip()
        _log(f"{what} failed unexpectedly; other work continues", error, fields)
        count(work)
        try:
            tell(error)
        except Exception as second:
            _log(f"{what}: the failure could not be reported", second, fields)


def _log(text: str, error: Exception, fields: dict[str, object]) -> None:
    log.error("%s", text, exc_info=error, extra=fields)
