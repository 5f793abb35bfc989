# SPDX-License-Identifier: Apache-2.0
"""Every answer that is not an object: `Status`, and the errors that become one.

Codes, reasons and texts follow k8s.io/apimachinery's api/errors package. A handler raises an
`RequestError`; the HTTP layer writes its `status`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from .field_errors import FieldError
from .objects import Object


class RequestError(Exception):
    """A request that fails. `status` is the answer's body, `code` its HTTP status."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details

    @property
    def status(self) -> Object:
        """The metav1.Status that tells a client."""
        return failure(self.code, self.reason, str(self), self.details)


def failure(code: int, reason: str, message: str, details: Object | None = None) -> Object:
    """A Status that reports an error."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    status["code"] = code
    return status


def success(details: Object | None = None, code: int = 0) -> Object:
    """A Status that reports success; `code` of a creation."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = details
    if code:
        status["code"] = code
    return status


def qualified(plural: str, group: str) -> str:
    """`resourceslices.resource.k8s.io`, or `pods` of the core group."""
    return f"{plural}.{group}" if group else plural


def _about(name: str, group: str, kind: str) -> Object:
    details: Object = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details


def not_found(plural: str, group: str, name: str) -> RequestError:
    """404: the object does not exist."""
    text = f'{qualified(plural, group)} "{name}" not found'
    return RequestError(404, "NotFound", text, _about(name, group, plural))


def no_such_resource() -> RequestError:
    """404: the group, version, resource or subresource is not served."""
    return RequestError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(plural: str, group: str, name: str) -> RequestError:
    """409: an object of that name exists."""
    text = f'{qualified(plural, group)} "{name}" already exists'
    return RequestError(409, "AlreadyExists", text, _about(name, group, plural))


def conflict(plural: str, group: str, name: str, detail: str) -> RequestError:
    """409: the object is not in the state that the request presumes."""
    text = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {detail}'
    return RequestError(409, "Conflict", text, _about(name, group, plural))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def apply_conflict(message: str, causes: Sequence[FieldError]) -> RequestError:
    """409: server-side apply would take fields that another manager owns."""
    return RequestError(409, "Conflict", message, {"causes": _causes(causes)})


def _causes(errors: Iterable[FieldError]) -> list[Any]:
    return [{"reason": error.reason, "message": error.message, "field": error.field} for error in errors]


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> RequestError:
    """422: the object breaks rules of its kind."""
    unique = list(dict.fromkeys(errors))
    texts = list(dict.fromkeys(str(error) for error in unique))
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    text = f'{qualified(kind, group)} "{name}" is invalid: {listed}'
    return RequestError(422, "Invalid", text, {**_about(name, group, kind), "causes": _causes(unique)})


def invalid_options(kind: str, errors: Sequence[FieldError]) -> RequestError:
    """422: the query parameters or options body break rules."""
    return invalid(kind, "meta.k8s.io", "", errors)


def unprocessable() -> RequestError:
    """422: a JSON patch that cannot be carried out on this object."""
    return RequestError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def bad_request(message: str) -> RequestError:
    """400: the request makes no sense."""
    return RequestError(400, "BadRequest", message)


def unauthorized() -> RequestError:
    """401: the credentials are unknown."""
    return RequestError(401, "Unauthorized", "Unauthorized")


def forbidden(plural: str, group: str, name: str, detail: str) -> RequestError:
    """403: the user may not, or admission refuses."""
    subject = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    return RequestError(403, "Forbidden", f"{subject} is forbidden: {detail}", _about(name, group, plural))


def method_not_allowed() -> RequestError:
    """405: the resource exists but does not know the verb."""
    text = "the server does not allow this method on the requested resource"
    return RequestError(405, "MethodNotAllowed", text, {})


def not_acceptable(accepted: Iterable[str]) -> RequestError:
    """406: none of the representations that the client accepts can be made."""
    text = f"only the following media types are accepted: {', '.join(accepted)}"
    return RequestError(406, "NotAcceptable", text)


def unsupported_media_type(accepted: Iterable[str]) -> RequestError:
    """415: the body's format is not read here."""
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return RequestError(415, "UnsupportedMediaType", text)


def expired(message: str) -> RequestError:
    """410: the history that the request needs has been compacted."""
    return RequestError(410, "Expired", message)


def too_large_resource_version(asked: int, current: int) -> RequestError:
    """504: the client knows a version that this server has not seen."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    text = f"Timeout: Too large resource version: {asked}, current: {current}"
    return RequestError(504, "Timeout", text, {"causes": [cause], "retryAfterSeconds": 1})


def too_many_requests(seconds: int, message: str = "the server has received too many requests") -> RequestError:
    """429: come back later."""
    text = f"{message} and has asked us to try again later"
    return RequestError(429, "TooManyRequests", text, {"retryAfterSeconds": seconds})


def internal(message: str, *, plain: bool = False) -> RequestError:
    """500: the server failed. `plain` leaves the reason out, as for errors that are no Status."""
    if plain:
        return RequestError(500, "", message)
    text = f"Internal error occurred: {message}"
    return RequestError(500, "InternalError", text, {"causes": [{"message": message}]})
