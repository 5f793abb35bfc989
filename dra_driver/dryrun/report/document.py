# SPDX-License-Identifier: Apache-2.0
"""A report for programs, as JSON or YAML, by docs/reference/dryrun-output.schema.json.

docs/reference/dryrun-output.md describes it in words.

Within a version, fields may be added, but no field is removed or changes its meaning. All fields are always present:
an unknown value is null, and a list may be empty.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

import yaml

from ...gpu.devices import ENFORCED_BY
from ...gpu.picture import Cell, NodePicture
from ...process.streams import UNPRINTABLE
from ..changes import Suggestion
from ..explain import Removal, RequestReport
from ..replicas import MOST_COPIES, Copies, Replicas
from ..status import Note, documents_of
from ..stock import DeviceCount
from ..verdict import Refused
from .model import Item, Report, ReportAnswer
from .picture import attribute, memory

API_VERSION: Final = "dryrun.gpu.nvidia.com/v1alpha1"
KIND: Final = "DryRunReport"
ERROR_KIND: Final = "DryRunError"

Json = dict[str, Any]

_ESCAPES: Final = {code: f"\\u{code:04x}" for code in UNPRINTABLE}
"""How JSON writes characters that could change the terminal that it is printed to."""


def to_json(document: Json) -> str:
    """A document as indented JSON, without a newline at the end."""
    return json.dumps(document, indent=2, ensure_ascii=False).translate(_ESCAPES)


def to_yaml(document: Json) -> str:
    """A document as YAML, without a newline at the end."""
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=120)
    return text.rstrip("\n")


def to_document(report: Report) -> Json:
    """The report as a document of plain dicts and lists."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "inputs": _inputs(report),
        "fits": report.fits,
        "notes": documents_of(report.unknown),
        "errors": documents_of(report.errors),
        "demands": [_answer(answer) for answer in report.answers],
        **({} if report.replicas is None else {"replicas": _replicas(report.replicas)}),
        "queues": [queue.document() for queue in report.queues],
        "leftover": [_leftover(count) for count in report.leftover],
    }


def error_document(errors: Iterable[Note]) -> Json:
    """The document of a command that has no answer, because its input is wrong or cannot be read."""
    return {"apiVersion": API_VERSION, "kind": ERROR_KIND, "errors": documents_of(errors)}


def _inputs(report: Report) -> Json:
    return {
        "source": report.where,
        "kubernetesVersion": report.release,
        "nodes": report.nodes,
        "resourceSlices": report.slices,
        "devices": report.devices,
        "allocatedClaims": report.claims,
        "assumptions": list(report.assumptions),
        "notes": list(report.notes),
    }


def _answer(answer: ReportAnswer) -> Json:
    verdict, removal = answer.verdict, answer.verdict.removal
    return {
        "name": verdict.demand.name,
        "fits": verdict.fits,
        "node": verdict.node,
        "fittingNodes": list(verdict.fitting),
        "devices": [_device(item) for item in answer.items],
        "state": verdict.state or None,
        "problems": list(verdict.problems),
        "rejects": list(verdict.rejects),
        "summary": verdict.summary or None,
        "refused": [_refused(refused) for refused in verdict.refused],
        "changes": [_change(change) for change in verdict.changes],
        "event": verdict.event or None,
        "preemption": None if removal is None else {"node": removal.node, "pods": list(removal.pods)},
        "notes": list(verdict.notes),
        "unknown": list(verdict.unknown),
        "assumptions": list(verdict.assumptions),
        "error": verdict.error or None,
        "schedulerDefect": None if verdict.defect is None else _change(verdict.defect),
        "picture": None if answer.picture is None else _picture(answer.picture),
    }


def _device(item: Item) -> Json:
    placed, device = item.placed, item.placed.device
    return {
        "claim": placed.claim,
        "request": placed.request,
        "driver": item.driver or None,
        "pool": placed.pool,
        "device": placed.name,
        "model": attribute(device, "productName") or None,
        "profile": attribute(device, "profile") or None,
        "memory": memory(device) or None,
        "consumed": {name: str(amount) for name, amount in placed.consumed.items()} or None,
        "sharesEnforcedBy": attribute(device, ENFORCED_BY) or None,
        "uuid": attribute(device, "uuid") or None,
        "parentUUID": attribute(device, "parentUUID") or None,
    }


def _refused(refused: Refused) -> Json:
    explanation = refused.explanation
    return {
        "nodes": list(refused.nodes),
        "error": explanation.error or None,
        "fatal": explanation.fatal,
        "pools": list(explanation.pools),
        "requests": [_request(request) for request in explanation.requests],
    }


def _request(request: RequestReport) -> Json:
    return {
        "claim": request.claim,
        "request": request.request,
        "wanted": request.wanted,
        "considered": request.considered,
        "qualify": request.left,
        "removed": [_removal(removal) for removal in request.removals],
    }


def _removal(removal: Removal) -> Json:
    return {
        "check": removal.check.value,
        "reason": removal.text,
        "devices": removal.devices,
        "saw": [{"value": value, "devices": count} for value, count in removal.saw],
    }


def _change(change: Suggestion) -> Json:
    return {"change": change.text, "node": change.node}


def _picture(picture: NodePicture) -> Json:
    return {
        "node": picture.node,
        "gpus": [
            {
                "name": gpu.name,
                "model": gpu.model or None,
                "memorySlices": gpu.slices,
                "cells": [_cell(cell) for cell in gpu.cells],
            }
            for gpu in picture.gpus
        ],
    }


def _cell(cell: Cell) -> Json:
    return {
        "firstSlice": cell.first,
        "slices": cell.count,
        "devices": list(cell.devices),
        "label": cell.label,
        "heldBy": list(cell.held_by),
        "proposedFor": list(cell.proposed_for),
    }


def _replicas(replicas: Replicas) -> Json:
    return {
        "wanted": None if replicas.wanted == MOST_COPIES else replicas.wanted,
        "limit": MOST_COPIES,
        "now": _copies(replicas.now),
        "nothingInUse": _copies(replicas.idle),
    }


def _copies(copies: Copies) -> Json:
    nodes = [{"node": name, "copies": count} for name, count in copies.by_node.items()]
    return {"copies": copies.count, "more": copies.more, "nodes": nodes}


def _leftover(count: DeviceCount) -> Json:
    kind = count.kind
    return {
        "driver": kind.driver,
        "model": kind.model or None,
        "profile": kind.profile or None,
        "freeBefore": count.before,
        "freeAfter": count.after,
    }
