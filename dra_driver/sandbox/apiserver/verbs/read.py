# SPDX-License-Identifier: Apache-2.0
"""get and list, and what watch has in common with them: selectors and resource versions."""

from typing import Final

from .. import field_errors as errors
from .. import status
from ..catalog import Cluster
from ..kinds import FieldSelectors, text_at
from ..release import RESOURCE_GROUP
from ..storage.listing import ListQuery, Page, list_page
from ..storage.selectors import SelectorError, Test, field_terms, field_test, label_test
from ..storage.store import Record
from .call import Call

_NAME: Final = "metadata.name"


def get_object(cluster: Cluster, call: Call) -> Record:
    """GET of one object. 404, or 504 when the client has seen a later revision than there is."""
    wanted = resource_version(call)
    if wanted and wanted > cluster.store.revision:
        raise status.too_large_resource_version(wanted, cluster.store.revision)
    record = cluster.store.get(call.kind.stored_in, call.key)
    if record is None:
        raise call.missing()
    return record


def list_objects(cluster: Cluster, call: Call) -> Page:
    """GET of a collection."""
    return list_page(cluster.store, call.kind, call.namespace, list_query(call))


def resource_version(call: Call) -> int | None:
    """The resourceVersion parameter; 400 when it is none."""
    text = call.option("resourceVersion")
    if not text:
        return None
    if not text.isdecimal():
        problem = errors.invalid("resourceVersion", text, f'strconv.ParseUint: parsing "{text}": invalid syntax')
        raise status.bad_request(f"invalid resource version: {problem}")
    return int(text)


def list_query(call: Call) -> ListQuery:
    """The list parameters of a request. 400 or 422 when they are wrong."""
    token = call.option("continue")
    revision = resource_version(call)
    if token and revision:
        raise status.bad_request("specifying resource version is not allowed when using continue")
    tests, name = selectors(call)
    return ListQuery(
        tests=tests,
        name=name,
        limit=0 if revision == 0 else call.number("limit") or 0,  # "any version" comes whole, as from a cache
        token=token,
        revision=revision,
    )


def selectors(call: Call) -> tuple[tuple[Test, ...], str]:
    """The tests of labelSelector and fieldSelector, and the only name that can match. 400 when they are wrong."""
    tests = []
    name = call.name
    try:
        labels = label_test(call.option("labelSelector"))
        if labels is not None:
            tests.append(labels)
        text = call.option("fieldSelector")
        _check_fields(call, text)
        fields = field_test(text, readers(call))
        if fields is not None:
            tests.append(fields)
            name = name or next((value for key, equal, value in field_terms(text) if key == _NAME and equal), "")
    except SelectorError as error:
        raise status.bad_request(str(error)) from error
    return tuple(tests), name


def _check_fields(call: Call, text: str) -> None:
    """Kinds that can be selected by more than their name word their refusal themselves."""
    if not call.kind.selectors:
        return
    known = readers(call)
    for name, _, _ in field_terms(text):
        if name not in known:
            where = (
                f" for {call.served.api_version}, Kind={call.kind.name}" if call.kind.group == RESOURCE_GROUP else ""
            )
            raise status.bad_request(f"field label not supported{where}: {name}")


def readers(call: Call) -> FieldSelectors:
    """The fields that objects of the kind can be selected by."""
    common = {_NAME: text_at("metadata", "name")}
    if call.kind.namespaced:
        common["metadata.namespace"] = text_at("metadata", "namespace")
    return {**common, **call.kind.selectors}
