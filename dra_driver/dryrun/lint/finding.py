# SPDX-License-Identifier: Apache-2.0
"""The rules of lint and its findings: the violated rule, the place, and the remedy."""

import enum
import re
from dataclasses import dataclass
from typing import Final

_LEAF = re.compile(r"[^.\[\]]*(\[[^\]]*\])*$")


class Severity(enum.StrEnum):
    """Errors are refused by Kubernetes or can never work. Warnings may be intended."""

    ERROR = "error"
    WARNING = "warning"


class LintRule(enum.Enum):
    """Every rule, in the order of the documentation. Its name never changes, because scripts and people refer to it."""

    UNREADABLE = Severity.ERROR, "The file cannot be read, or is not YAML or JSON."
    DUPLICATE_KEY = Severity.ERROR, "A key occurs twice. The API server refuses that."
    NOT_AN_OBJECT = (
        Severity.ERROR,
        "An object is no mapping, a List has no list of items, or an object of resource.k8s.io lacks its apiVersion.",
    )
    UNKNOWN_FIELD = Severity.ERROR, "The object has a field that does not exist there."
    SCHEMA = Severity.ERROR, "A field is missing, is of the wrong type, or belongs to another version's form."
    DUPLICATE_OBJECT = Severity.ERROR, "Another object of the file has the same kind, namespace and name."
    INVALID_SLICE = Severity.ERROR, "The API server would refuse the ResourceSlice."
    API_VERSION_NOT_SERVED = Severity.ERROR, "The release does not serve this version of resource.k8s.io."
    DEPRECATED_API_VERSION = (
        Severity.WARNING,
        "Clusters serve this version only on request, and it will be removed.",
    )
    UNKNOWN_KIND = Severity.ERROR, "resource.k8s.io has no such kind."
    FIELD_NOT_IN_RELEASE = Severity.ERROR, "The release does not have this field yet, or no longer has it."
    FEATURE_GATE_OFF = Severity.WARNING, "The field is dropped unless a feature gate is switched on."
    TAINT_RULE_SELECTS_TOO_MUCH = (
        Severity.WARNING,
        "A DeviceTaintRule selects devices of all drivers, or devices of one name in all pools; or it selects nothing.",
    )
    INVALID_NAME = Severity.ERROR, "An object, class, request or alternative has a name that Kubernetes refuses."
    DUPLICATE_NAME = Severity.ERROR, "Two requests, or two alternatives of one, have the same name."
    INVALID_COUNT = Severity.ERROR, "A request's count and allocation mode do not go together."
    ZERO_COUNT = Severity.WARNING, "The API server changes a count of 0 to 1."
    INVALID_TOLERATION = Severity.ERROR, "The API server refuses a toleration."
    TOO_MANY = Severity.ERROR, "A list is longer than the API server accepts, or a claim asks for too many devices."
    TOO_LARGE = Severity.ERROR, "Opaque parameters are larger than the API server accepts."
    CONSTRAINT_NAMES_NO_REQUEST = Severity.ERROR, "A constraint names a request that the claim does not have."
    CONSTRAINT_ATTRIBUTE = Severity.ERROR, "A constraint has not exactly one well-formed attribute."
    CONSTRAINT_NEVER_MET = Severity.WARNING, "No known device that a request selects has the attribute."
    CONSTRAINT_CANNOT_HOLD = Severity.WARNING, "No known node has devices that meet the constraint, even if it is idle."
    CONFIG_NAMES_NO_REQUEST = Severity.ERROR, "A configuration names a request that the claim does not have."
    INVALID_CONFIG = Severity.ERROR, "The driver refuses the configuration, which fails the pod on its node."
    CONFIG_KIND = Severity.ERROR, "A configuration is of a kind that the devices it is for do not take."
    CONFIG_UNUSED = Severity.WARNING, "A configuration is for no device that the claim can be given."
    CONFIG_WITHOUT_EFFECT = Severity.WARNING, "The configuration is valid and changes nothing."
    CONFIG_DOMAIN = Severity.WARNING, "A configuration names no ComputeDomain, or is that of an IMEX daemon."
    DOMAIN_TEMPLATE_TAKEN = Severity.ERROR, "Another object has the name of a ComputeDomain's claim template."
    DOMAIN_NUM_NODES = Severity.WARNING, "A ComputeDomain has the field numNodes, which is deprecated."
    CHANNEL_WITHOUT_DOMAIN = Severity.ERROR, "A request for a channel has no configuration with its ComputeDomain."
    UNKNOWN_CLASS = Severity.WARNING, "The DeviceClass is neither among the files nor one of the known ones."
    CAPACITY_NEVER_MET = Severity.WARNING, "No known device that a request selects has the capacity it asks for."
    SELECTOR_REFUSED = Severity.ERROR, "The API server refuses the expression: it is wrong, too long or too complex."
    SELECTOR_FAILS = (
        Severity.ERROR,
        "The expression has no answer for some devices; the scheduler then gives up the pod.",
    )
    SELECTOR_NEVER_TRUE = Severity.WARNING, "The selector is true for no known device."
    UNKNOWN_ATTRIBUTE = Severity.WARNING, "The expression asks for an attribute or capacity that no device has."
    CLASS_WITHOUT_DRIVER = Severity.ERROR, "A class's selector fails on devices of other drivers."
    POD_CLAIM = Severity.ERROR, "The API server refuses a claim of a pod, or a container's use of it."
    CONTAINER_NAMES_NO_CLAIM = Severity.ERROR, "A container uses a claim that is not in resourceClaims."
    CONTAINER_NAMES_NO_REQUEST = Severity.ERROR, "A container uses a request that the claim does not have."
    CLAIM_NOT_FOUND = Severity.WARNING, "The ResourceClaim or ResourceClaimTemplate of a pod is not among the files."
    CLAIM_UNUSED = Severity.WARNING, "No container uses a claim of the pod: its devices are allocated and not used."

    def __init__(self, severity: Severity, summary: str) -> None:
        self.severity = severity
        self.summary = summary

    @property
    def id(self) -> str:
        """The name in findings: `unknown-field`."""
        return self.name.lower().replace("_", "-")


RULES: Final = {rule.id: rule for rule in LintRule}
"""The rules by the names in findings."""


@dataclass(frozen=True, slots=True)
class LintIssue:
    """A violation of a rule. `path` is the field, `offset` a place in its text (code points; None: the whole text)."""

    rule: LintRule
    path: str
    message: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class LintFinding:
    """An issue in its file. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    path: str
    rule: str
    severity: Severity
    message: str

    @property
    def text(self) -> str:
        """The message, and the field that it is about: `count: must be at least 1`."""
        leaf = _LEAF.search(self.path)
        return f"{leaf.group()}: {self.message}" if leaf is not None and leaf.group() else self.message

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.text} [{self.rule}]"
