# SPDX-License-Identifier: Apache-2.0
"""CDI names: the kind `vendor/class`, device names, and the qualified name `vendor/class=device`.

The characters are those that the container-device-interface library takes; the lengths of vendor and class are
those of its SPEC.md, which the library does not check.
"""

import re

VENDOR_LENGTH = 253
CLASS_LENGTH = 63

_KIND_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def is_vendor(name: str) -> bool:
    """Whether `name` can stand before the slash of a kind."""
    return len(name) <= VENDOR_LENGTH and _KIND_PART.fullmatch(name) is not None


def is_class(name: str) -> bool:
    """Whether `name` can stand after the slash of a kind."""
    return len(name) <= CLASS_LENGTH and _KIND_PART.fullmatch(name) is not None


def is_device_name(name: str) -> bool:
    """Whether `name` can name a device of a spec."""
    return _DEVICE.fullmatch(name) is not None


def split_kind(kind: str) -> tuple[str, str]:
    """Vendor and class of `kind`. ValueError when it is not of the form vendor/class."""
    vendor, slash, device_class = kind.partition("/")
    if not (slash and is_vendor(vendor) and is_class(device_class)):
        raise ValueError(
            f"{kind!r} is not a CDI kind: vendor/class, each of letters, digits, '_', '.' and '-', "
            f"beginning with a letter and ending with a letter or digit, of at most {VENDOR_LENGTH} "
            f"and {CLASS_LENGTH} characters"
        )
    return vendor, device_class


def qualified_name(kind: str, device: str) -> str:
    """What a container asks for: `vendor/class=device`. ValueError when a part is not a CDI name."""
    split_kind(kind)
    if not is_device_name(device):
        raise ValueError(
            f"{device!r} is not a CDI device name: letters, digits, '_', '.', ':' and '-', "
            "beginning and ending with a letter or digit"
        )
    return f"{kind}={device}"


def split_qualified_name(name: str) -> tuple[str, str]:
    """Kind and device name of a qualified name. ValueError when it is not one."""
    kind, equals, device = name.partition("=")
    if not equals:
        raise ValueError(f"{name!r} is not a qualified CDI device name: vendor/class=device")
    qualified_name(kind, device)
    return kind, device
