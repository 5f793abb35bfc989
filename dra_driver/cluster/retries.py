# SPDX-License-Identifier: Apache-2.0
"""Which requests are sent again, and when.

Refused connections and overloaded servers are tried again. A request that was sent and not answered may have been
carried out: it is repeated once, since a write carries a name or a resource version, so that one which did arrive
is answered with a conflict. One without either must not be repeated (`ONCE`) unless the server says when.
"""

from typing import Final

from urllib3 import BaseHTTPResponse
from urllib3.util import Retry

_LONGEST_WAIT: Final = 5.0


class _Retry(Retry):
    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        """What the server asks for, within reason: callers try again on their own, and hold locks meanwhile."""
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, _LONGEST_WAIT)


def _policy(read: int, statuses: tuple[int, ...]) -> _Retry:
    return _Retry(
        total=4,
        read=read,
        other=1,  # TLS: a certificate that is refused stays so
        status_forcelist=statuses,
        allowed_methods=None,
        backoff_factor=0.1,
        backoff_jitter=0.2,
        raise_on_status=False,
    )


REPEATABLE: Final = _policy(1, (429, 502, 503, 504))
ONCE: Final = _policy(0, (429,))
