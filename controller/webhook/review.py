# SPDX-License-Identifier: Apache-2.0
"""The answer to an AdmissionReview (admission.k8s.io/v1) of an object with opaque configurations. Pure.

An invalid configuration is refused. One that changes nothing, or that a user should not write, is accepted with a
warning. The configurations are those of both drivers, gpu.nvidia.com and compute-domain.nvidia.com.

Only configurations that a request changes are checked. An update that does not change a configuration is accepted,
whatever the configuration is. So finalizers can be removed and objects deleted that are older than the webhook or
than one of its rules.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.config import ConfigError, decode_config, decode_domain_config, ineffective
from dra_driver.domains.mistakes import mistake
from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.kube.resource.codec import DecodeError, Fields
from dra_driver.names import DRIVER_NAME

from ..errors import ReviewError

JSON = dict[str, Any]

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

_CLASS: Final = "DeviceClass"
_CONFIGURED: Final[Mapping[str, tuple[str, ...]]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    _CLASS: ("spec",),
}
"""The path of the field `config` by kind, in every version of resource.k8s.io."""

_JUDGED: Final = ("CREATE", "UPDATE")
_UNPROCESSABLE: Final = 422


def answer(review: object) -> JSON:
    """The AdmissionReview with the answer. Raises ReviewError."""
    try:
        fields = Fields(review)
        version, kind = fields.required_text("apiVersion"), fields.required_text("kind")
        if (version, kind) != (API_VERSION, KIND):
            raise ReviewError(f"must be an {KIND} of {API_VERSION}, not {kind} of {version}")
        request = fields.required_object("request")
        uid = request.required_text("uid")
        asked = (
            request.required_object("kind").required_text("kind"),
            request.required_text("operation"),
            request.raw_object("object") or {},
            request.raw_object("oldObject") or {},
        )
        refused = list(_refused(*asked))
        response = _refusal(refused) if refused else _consent(warnings(*asked))
    except DecodeError as error:
        raise ReviewError(str(error)) from None
    return {"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": uid, **response}}


def problems(kind: str, operation: str, value: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """The problems of an object's configurations for the two drivers, each with its field.

    `old` is the object before an update. Raises DecodeError if an object has a form that the API would not accept.
    """
    return [str(error) for _, error in _refused(kind, operation, value, old)]


def _refused(
    kind: str, operation: str, value: Mapping[str, Any], old: Mapping[str, Any]
) -> Iterator[tuple[str, ConfigError]]:
    """(Driver, problem) of each invalid configuration."""
    for path, driver, parameters in _brought(kind, operation, value, old):
        try:
            _doubt(kind, driver, parameters, path, value)
        except ConfigError as error:
            yield driver, error


def warnings(kind: str, operation: str, value: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """The warnings about the configurations of an object without problems, each with its field."""
    return [
        str(warning)
        for path, driver, parameters in _brought(kind, operation, value, old)
        if (warning := _doubt(kind, driver, parameters, path, value)) is not None
    ]


def _doubt(kind: str, driver: str, parameters: object, path: str, value: Mapping[str, Any]) -> ConfigError | None:
    """A warning about a configuration. Raises ConfigError if it is invalid."""
    if driver == DRIVER_NAME:
        return ineffective(decode_config(parameters, path, of_class=kind == _CLASS), path)
    metadata = Fields(value).raw_object("metadata") or {}
    owner = metadata.get("name") or metadata.get("generateName") or ""
    return mistake(decode_domain_config(parameters, path), str(owner), path)


def _brought(
    kind: str, operation: str, value: Mapping[str, Any], old: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """(Path, driver, parameters) of each configuration for the two drivers that is new in this request."""
    if operation not in _JUDGED or kind not in _CONFIGURED:
        return
    metadata = Fields(value).raw_object("metadata") or {}
    if metadata.get("deletionTimestamp"):
        return
    known = [config for _, config in _configs(kind, old)]
    for path, config in _configs(kind, value):
        driver = config.get("driver")
        if config not in known and driver in (DRIVER_NAME, DOMAIN_DRIVER):
            yield path, driver, config.get("parameters")


def _configs(kind: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(Path, opaque configuration) of each configuration, for any driver."""
    inner: Fields | None = Fields(value)
    for step in _CONFIGURED[kind]:
        inner = inner.object(step) if inner is not None else None
    for index, entry in enumerate(inner.array("config") if inner is not None else ()):
        path = ".".join((*_CONFIGURED[kind], f"config[{index}]"))
        opaque = Fields(entry, path).raw_object("opaque")
        if opaque is not None:
            yield f"{path}.opaque.parameters", opaque


def _refusal(refused: list[tuple[str, ConfigError]]) -> JSON:
    count = "configuration" if len(refused) == 1 else "configurations"
    drivers = " and ".join(dict.fromkeys(driver for driver, _ in refused))
    found = "; ".join(str(error) for _, error in refused)
    message = f"{len(refused)} {count} for {drivers} cannot be used: {found}"
    return {"allowed": False, "status": {"code": _UNPROCESSABLE, "reason": "Invalid", "message": message}}


def _consent(found: list[str]) -> JSON:
    return {"allowed": True, "warnings": found} if found else {"allowed": True}
