# SPDX-License-Identifier: Apache-2.0
"""Writes of claims that keep the text of their opaque parameters, as those of kube-scheduler and its like do.

An update in JSON would change this text (see `apiserver.opaque`), which is immutable. So the object is sent in
protobuf, with the texts that the API server has. A claim without such parameters is sent in JSON.
"""

import json

from ..kube.api import ApiClient
from ..kube.releases import NEWEST_MINOR
from .apiserver.objects import canonical
from .apiserver.opaque import recoded, texts
from .apiserver.schema.decode import decode
from .apiserver.schema.protobuf import decode_message, encode_object, read_envelope
from .apiserver.schema.published import schemas_of
from .apiserver.verbs.request import PROTOBUF
from .loop import CLAIMS, JSON


def update_claim(client: ApiClient, claim: JSON, subresource: str = "") -> JSON:
    """Replace a claim, or its status. Its resourceVersion must be the current one. Raises ApiError."""
    group, _, version = CLAIMS.api_version.partition("/")
    node = schemas_of(NEWEST_MINOR).find(group, version, "ResourceClaim")
    assert node is not None, "ResourceClaim is published"
    decoded = decode(claim, node).value
    if not any(texts(decoded)):
        return client.update(CLAIMS, claim, subresource=subresource)
    meta = claim["metadata"]
    path = CLAIMS.path(meta["namespace"], meta["name"])
    _, stored = read_envelope(client.send("GET", path, accept=PROTOBUF))
    known = {canonical(json.loads(text)): text for text in texts(decode_message(stored, node))}
    value = recoded(decoded, lambda text: known.get(canonical(json.loads(text)), text))
    body = encode_object({"apiVersion": CLAIMS.api_version, "kind": "ResourceClaim", **value}, node)
    target = CLAIMS.path(meta["namespace"], meta["name"], subresource)
    written: JSON = json.loads(client.send("PUT", target, body, content_type=PROTOBUF))
    return written
