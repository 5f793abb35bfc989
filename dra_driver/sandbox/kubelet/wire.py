# SPDX-License-Identifier: Apache-2.0
"""Kubelet's side of the gRPC protocol: plugin registration, DRAPlugin and DRAResourceHealth.

The descriptors are written from the published tables of fields, in a descriptor pool of their own. They share nothing
with the code of plugins: a plugin that works with this kubelet follows the protocol. Other modules see only plain
values, never protobuf messages.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

REGISTRATION: Final = "pluginregistration"
DRA_V1: Final = "k8s.io.kubelet.pkg.apis.dra.v1"
DRA_V1BETA1: Final = "k8s.io.kubelet.pkg.apis.dra.v1beta1"
HEALTH_V1: Final = "v1"
HEALTH_V1ALPHA1: Final = "v1alpha1"

GET_INFO: Final = f"/{REGISTRATION}.Registration/GetInfo"
NOTIFY_REGISTRATION_STATUS: Final = f"/{REGISTRATION}.Registration/NotifyRegistrationStatus"

PLUGIN_SERVICES: Final[Mapping[str, str]] = {"v1.DRAPlugin": DRA_V1, "v1beta1.DRAPlugin": DRA_V1BETA1}
"""The DRAPlugin services that plugins advertise, with their protobuf packages."""

HEALTH_SERVICES: Final[Mapping[str, str]] = {
    "v1.DRAResourceHealth": HEALTH_V1,
    "v1alpha1.DRAResourceHealth": HEALTH_V1ALPHA1,
}
"""The optional health services with their protobuf packages, in kubelet's order of preference."""

_Field = tuple[str, int, str]
"""A field: name, number and type. Types are scalars, `Message`, `repeated TYPE` and `map Message`."""

_REGISTRATION_MESSAGES: Mapping[str, tuple[_Field, ...]] = {
    "InfoRequest": (),
    "PluginInfo": (
        ("type", 1, "string"),
        ("name", 2, "string"),
        ("endpoint", 3, "string"),
        ("supported_versions", 4, "repeated string"),
    ),
    "RegistrationStatus": (("plugin_registered", 1, "bool"), ("error", 2, "string")),
    "RegistrationStatusResponse": (),
}
_DRA_MESSAGES: Mapping[str, tuple[_Field, ...]] = {
    "Claim": (("namespace", 1, "string"), ("uid", 2, "string"), ("name", 3, "string")),
    "Device": (
        ("request_names", 1, "repeated string"),
        ("pool_name", 2, "string"),
        ("device_name", 3, "string"),
        ("cdi_device_ids", 4, "repeated string"),
    ),
    "NodePrepareResourcesRequest": (("claims", 1, "repeated Claim"),),
    "NodePrepareResourceResponse": (("devices", 1, "repeated Device"), ("error", 2, "string")),
    "NodePrepareResourcesResponse": (("claims", 1, "map NodePrepareResourceResponse"),),
    "NodeUnprepareResourcesRequest": (("claims", 1, "repeated Claim"),),
    "NodeUnprepareResourceResponse": (("error", 1, "string"),),
    "NodeUnprepareResourcesResponse": (("claims", 1, "map NodeUnprepareResourceResponse"),),
}
"""The messages of both packages. Kubelet does not use field 5 of v1's Device, its share."""
_HEALTH_MESSAGES: Mapping[str, tuple[_Field, ...]] = {
    "NodeWatchResourcesRequest": (),
    "DeviceIdentifier": (("pool_name", 1, "string"), ("device_name", 2, "string")),
    "DeviceHealth": (
        ("device", 1, "DeviceIdentifier"),
        ("health", 2, "HealthStatus"),
        ("last_updated_time", 3, "int64"),
        ("health_check_timeout_seconds", 4, "int64"),
        ("message", 5, "string"),
    ),
    "NodeWatchResourcesResponse": (("devices", 1, "repeated DeviceHealth"),),
}
_HEALTH_STATUS = ("UNKNOWN", "HEALTHY", "UNHEALTHY")

_Proto = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _Proto.TYPE_STRING, "bool": _Proto.TYPE_BOOL, "int64": _Proto.TYPE_INT64}


def _add_message(file: descriptor_pb2.FileDescriptorProto, name: str, fields: Iterable[_Field]) -> None:
    message = file.message_type.add(name=name)
    for field_name, number, declared in fields:
        label, _, type_name = declared.rpartition(" ")
        made = message.field.add(name=field_name, number=number, label=_Proto.LABEL_OPTIONAL)
        if label in ("repeated", "map"):
            made.label = _Proto.LABEL_REPEATED
        if label == "map":
            entry = message.nested_type.add(name=f"{field_name.title()}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=_Proto.LABEL_OPTIONAL, type=_Proto.TYPE_STRING)
            value = entry.field.add(name="value", number=2, label=_Proto.LABEL_OPTIONAL, type=_Proto.TYPE_MESSAGE)
            value.type_name = f".{file.package}.{type_name}"
            type_name = f"{name}.{entry.name}"
        if type_name in _SCALARS:
            made.type = _SCALARS[type_name]
        else:
            is_enum = any(enum.name == type_name for enum in file.enum_type)
            made.type = _Proto.TYPE_ENUM if is_enum else _Proto.TYPE_MESSAGE
            made.type_name = f".{file.package}.{type_name}"


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for package, messages in (
        (REGISTRATION, _REGISTRATION_MESSAGES),
        (DRA_V1, _DRA_MESSAGES),
        (DRA_V1BETA1, _DRA_MESSAGES),
        (HEALTH_V1, _HEALTH_MESSAGES),
        (HEALTH_V1ALPHA1, _HEALTH_MESSAGES),
    ):
        file = descriptor_pb2.FileDescriptorProto(name=f"kubelet/{package}.proto", package=package, syntax="proto3")
        if messages is _HEALTH_MESSAGES:
            enum = file.enum_type.add(name="HealthStatus")
            for number, value in enumerate(_HEALTH_STATUS):
                enum.value.add(name=value, number=number)
        for name, fields in messages.items():
            _add_message(file, name, fields)
        pool.Add(file)
    return pool


_POOL = _pool()


def message_class(package: str, name: str) -> Any:
    """Return the class of a message in the tables above. Its attributes are known only at run time."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{package}.{name}"))


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The answer of GetInfo. An empty `endpoint` means the registration socket."""

    type: str
    name: str
    endpoint: str
    supported_versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim in requests to plugins."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a prepared claim. A device without `request_names` belongs to all requests."""

    pool: str
    device: str
    request_names: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """A plugin's answer for one claim. With an `error`, `devices` has no meaning. Unprepare has no devices."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class Health(Enum):
    """The health of a device, by the names in pod.status."""

    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health that a plugin reports of a device. `timeout` is in seconds; 0 or less selects the default."""

    health: Health = Health.UNKNOWN
    message: str = ""
    timeout: int = field(default=0, compare=False)


def encode_nothing(_: None) -> bytes:
    """Encode an InfoRequest or a NodeWatchResourcesRequest. They have no fields, so they are empty."""
    return b""


def decode_info(data: bytes) -> PluginInfo:
    """Decode a PluginInfo message."""
    info = message_class(REGISTRATION, "PluginInfo").FromString(data)
    return PluginInfo(info.type, info.name, info.endpoint, tuple(info.supported_versions))


def encode_status(error: str) -> bytes:
    """Encode a RegistrationStatus message. It reports success if `error` is empty."""
    status = message_class(REGISTRATION, "RegistrationStatus")(plugin_registered=not error, error=error)
    return bytes(status.SerializeToString())


def encode_claims(package: str, method: str, claims: Iterable[ClaimRef]) -> bytes:
    """Encode the request of `method`, NodePrepareResources or NodeUnprepareResources."""
    request = message_class(package, f"{method}Request")()
    for claim in claims:
        request.claims.add(namespace=claim.namespace, uid=claim.uid, name=claim.name)
    return bytes(request.SerializeToString())


def decode_answers(package: str, method: str, data: bytes) -> Mapping[str, ClaimAnswer]:
    """Decode the response of `method`, NodePrepareResources or NodeUnprepareResources, to answers by claim UID."""
    response = message_class(package, f"{method}Response").FromString(data)
    return {
        uid: ClaimAnswer(tuple(map(_device, getattr(claim, "devices", ()))), claim.error)
        for uid, claim in response.claims.items()
    }


def _device(device: Any) -> PreparedDevice:
    return PreparedDevice(
        device.pool_name, device.device_name, tuple(device.request_names), tuple(device.cdi_device_ids)
    )


def decode_health(package: str, data: bytes) -> Mapping[tuple[str, str], DeviceHealth]:
    """Decode a NodeWatchResourcesResponse to reports by pool and device. A status outside of the table is unknown."""
    response = message_class(package, "NodeWatchResourcesResponse").FromString(data)
    known = dict(enumerate((Health.UNKNOWN, Health.HEALTHY, Health.UNHEALTHY)))
    return {
        (device.device.pool_name, device.device.device_name): DeviceHealth(
            known.get(device.health, Health.UNKNOWN), device.message, device.health_check_timeout_seconds
        )
        for device in response.devices
    }
