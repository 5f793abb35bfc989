# SPDX-License-Identifier: Apache-2.0
"""Answers that are not objects: `Status`, and the errors that become one.

Codes, reasons and texts follow the package api/errors of k8s.io/apimachinery. Handlers raise a `RequestError`, and the
HTTP layer sends its `status`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from .field_errors import FieldError
from .objects import Object

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class RequestError(Exception):
    """A request failed. `status` is the body of the answer, `code` its HTTP status."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details

    @property
    def status(self) -> Object:
        """The metav1.Status of the error."""
        return failure(self.code, self.reason, str(self), self.details)


def failure(code: int, reason: str, message: str, details: Object | None = None) -> Object:
    """Return a Status that reports an error."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    status["code"] = code
    return status


def success(details: Object | None = None, code: int = 0) -> Object:
    """Return a Status that reports success. `code` is set for a creation."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = details
    if code:
        status["code"] = code
    return status


def qualified(plural: str, group: str) -> str:
    """Return the name with its group: `resourceslices.resource.k8s.io`, or `pods` in the core group."""
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
    """Return 404: the object does not exist."""
    text = f'{qualified(plural, group)} "{name}" not found'
    return RequestError(404, "NotFound", text, _about(name, group, plural))


def no_such_resource() -> RequestError:
    """Return 404: the server does not serve the group, version, resource or subresource."""
    return RequestError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(plural: str, group: str, name: str) -> RequestError:
    """Return 409: an object with this name exists."""
    text = f'{qualified(plural, group)} "{name}" already exists'
    return RequestError(409, "AlreadyExists", text, _about(name, group, plural))


def conflict(plural: str, group: str, name: str, detail: str) -> RequestError:
    """Return 409: the object is not in the state that the request assumes."""
    text = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {detail}'
    return RequestError(409, "Conflict", text, _about(name, group, plural))


def apply_conflict(message: str, causes: Sequence[FieldError]) -> RequestError:
    """Return 409: server-side apply would change fields that another manager owns."""
    return RequestError(409, "Conflict", message, {"causes": _causes(causes)})


def _causes(errors: Iterable[FieldError]) -> list[Any]:
    return [{"reason": error.reason, "message": error.message, "field": error.field} for error in errors]


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> RequestError:
    """Return 422: the object breaks rules of its kind."""
    unique = list(dict.fromkeys(errors))
    texts = list(dict.fromkeys(str(error) for error in unique))
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    text = f'{qualified(kind, group)} "{name}" is invalid: {listed}'
    return RequestError(422, "Invalid", text, {**_about(name, group, kind), "causes": _causes(unique)})


def unprocessable() -> RequestError:
    """Return 422: the JSON patch cannot be applied to this object."""
    return RequestError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def bad_request(message: str) -> RequestError:
    """Return 400: the request is malformed."""
    return RequestError(400, "BadRequest", message)


def unauthorized() -> RequestError:
    """Return 401: the credentials are unknown."""
    return RequestError(401, "Unauthorized", "Unauthorized")


def forbidden(plural: str, group: str, name: str, detail: str) -> RequestError:
    """Return 403: the user lacks the permission, or admission refuses the request."""
    subject = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    return RequestError(403, "Forbidden", f"{subject} is forbidden: {detail}", _about(name, group, plural))


def method_not_allowed() -> RequestError:
    """Return 405: the resource does not support the verb."""
    text = "the server does not allow this method on the requested resource"
    return RequestError(405, "MethodNotAllowed", text, {})


def unsupported_media_type(accepted: Iterable[str]) -> RequestError:
    """Return 415: the server cannot read the format of the body."""
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return RequestError(415, "UnsupportedMediaType", text)


def expired(message: str) -> RequestError:
    """Return 410: the history that the request needs has been compacted."""
    return RequestError(410, "Expired", message)


def internal(message: str, *, plain: bool = False) -> RequestError:
    """Return 500: the server failed. `plain` omits the reason, as for errors that are no Status in kube-apiserver."""
    if plain:
        return RequestError(500, "", message)
    text = f"Internal error occurred: {message}"
    return RequestError(500, "InternalError", text, {"causes": [{"message": message}]})
