# SPDX-License-Identifier: Apache-2.0
"""One piece of work that fails unexpectedly does not end the others.

Work on one claim, one GPU, one slice or one file is wrapped here once, where the loop over all of them is. Errors that
the work is known to raise belong to the caller. Any other exception is a defect of the driver or something that nobody
thought of: it is logged with its traceback, counted, and told to whoever tries the work again.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

Count = Callable[[str], None]
"""Counts a failure by the kind of work: see `dra_driver.endpoints.unexpected_errors`."""


def nobody(_: object) -> None:
    """Neither counts nor tells."""


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
    """End an unexpected exception of the work in this context.

    `work` is a verb and a kind of object in a few fixed words (`publish slice`), since it is the label of a metric;
    `subject` names the one object, and `fields` are further fields of the log line. `tell` is called after the failure
    is logged and counted; an exception of `tell` is logged too. `expected` exceptions go on to the caller.
    """
    try:
        yield
    except expected:
        raise
    except Exception as error:
        _log(f"{work} {subject} failed unexpectedly; other work goes on", error, fields)
        count(work)
        try:
            tell(error)
        except Exception as second:
            _log(f"{work} {subject}: the failure could not be reported", second, fields)


def _log(text: str, error: Exception, fields: dict[str, object]) -> None:
    log.error("%s", text, exc_info=error, extra=fields)
