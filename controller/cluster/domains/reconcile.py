# SPDX-License-Identifier: Apache-2.0
"""Writes what differs between a domain as it is and as it should be.

A watch may lag. So updates name the resource version and deletes the UID, and a ComputeDomain that a watch does not
know is looked for once more before the objects of its domain are deleted. Two processes that both believe to be the
leader do no harm. Each write is complete in itself, so a process that is killed after any of them leaves a state from
which the next one continues.

Objects may carry the finalizer of NVIDIA's driver, whose objects this one takes over. It is removed.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from prometheus_client import Counter

from dra_driver.domains.names import DOMAIN_LABEL, TARGET_LABEL, daemon_name
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, Clique, ComputeDomain
from dra_driver.kube.api import ApiClient, ApiError, ConflictError, Kind, NotFoundError
from dra_driver.kube.api.client import JSON
from dra_driver.kube.api.events import EventRecorder, ObjectReference
from dra_driver.kube.kinds import NETWORK_POLICIES, NODES, SERVICE_ACCOUNTS, claims_of
from dra_driver.kube.resource.codec import Dialect

from ..collection import Collection
from .membership import Membership, membership, slots_of
from .objects import (
    FINALIZER,
    Account,
    DaemonSettings,
    Desired,
    clique_object,
    daemon_objects,
    has_metadata,
    workload_template,
)
from .status import (
    CANNOT_START,
    NAME_TAKEN,
    NO_ACCOUNT,
    WRITE_FAILED,
    DaemonProblem,
    DomainProblem,
    DomainStatus,
    domain_status,
    encode_status,
    host_managed_status,
)
from .view import CliqueFacts, StoredFacts, View

log = logging.getLogger(__name__)

_ACCOUNT_PAUSE = 10.0  # seconds between two looks for a service account that is missing
_ACCOUNT_SECONDS = 1.0  # how long one that was found is not looked for again, for a new domain
_ATTEMPTS = 5


P = ParamSpec("P")
R = TypeVar("R")
Place = tuple[str, str]
"""The kind and the name of an object of a domain."""


class NotLeaderError(Exception):
    """The process is no longer the one that writes."""


@dataclass(slots=True)
class _Memory:
    """What is remembered of a domain. Losing it costs only requests."""

    is_gone: bool = False
    status: JSON | None = None  # as sent
    stored_status: JSON | None = None  # as the server stored that
    status_at: float = 0.0
    told: frozenset[tuple[str, str, str]] = frozenset()
    objects: dict[Place, tuple[JSON, object]] = field(default_factory=dict)  # as sent, and as stored


class Reconciler:
    """Reconciles one domain at a time on each thread. No two threads may reconcile the same one at once.

    `again` is called with a UID and a pause in seconds, to reconcile that domain once more. The status of a domain is
    written at most once in `status_pause` seconds.
    """

    def __init__(
        self,
        client: ApiClient,
        dialect: Dialect,
        view: View,
        namespace: str,
        settings: DaemonSettings,
        recorder: EventRecorder,
        writes: Counter,
        stop: threading.Event,
        again: Callable[[str, float], None],
        status_pause: float,
    ) -> None:
        self._client = client
        self._dialect = dialect
        self._view = view
        self._namespace = namespace
        self._settings = settings
        self._recorder = recorder
        self._writes = writes
        self._stop = stop
        self._again = again
        self._status_pause = status_pause
        self._memory: dict[str, _Memory] = {}
        self._account: Account | None = None
        self._account_at = 0.0
        self.ready: dict[str, bool] = {}

    def reconcile(self, uid: str) -> None:
        """Write what differs for one domain. Raises ApiError after everything else was tried, and NotLeaderError."""
        found = self._view.domains.get(uid)
        if found is None or (found.domain is not None and found.domain.is_deleted):
            self._remove(uid, None if found is None else found.domain)
        elif found.domain is None:
            log.warning("ComputeDomain %s cannot be read, and is left as it is: %s", uid, found.problem)
        else:
            self._keep(found.domain)

    # A domain that exists

    def _keep(self, domain: ComputeDomain) -> None:
        errors: list[ApiError] = []
        template = self._try(errors, self._workload_template, domain)
        if self._settings.host_managed:
            self._report(domain, host_managed_status(template))
        else:
            daemons = self._try(errors, self._daemons, domain)
            members = self._members(domain)
            for node in members.labelled:
                daemons = self._try(errors, self._label, node, domain.uid) or daemons
            for node in members.unlabelled:
                daemons = self._try(errors, self._label, node, "") or daemons
            daemons = self._try(errors, self._write_cliques, domain) or daemons
            state = self._view.state(domain)
            members = membership(state, self._namespace, self._settings.most_nodes)
            status = domain_status(state, members, template, daemons)
            self._report(domain, status)
            self._tell(domain, status.troubles)
        if errors:
            raise errors[0]

    def _try(
        self, errors: list[ApiError], work: Callable[P, DomainProblem | None], *given: P.args, **more: P.kwargs
    ) -> DomainProblem | None:
        """The problem that the work found. An error is a problem, too, but the other work goes on."""
        try:
            return work(*given, **more)
        except ApiError as error:
            errors.append(error)
            return None if isinstance(error, ConflictError) else DomainProblem(WRITE_FAILED, str(error))

    def _members(self, domain: ComputeDomain) -> Membership:
        return membership(self._view.state(domain), self._namespace, self._settings.most_nodes)

    def _workload_template(self, domain: ComputeDomain) -> DomainProblem | None:
        desired = workload_template(domain, self._dialect, host_managed=self._settings.host_managed)
        found = self._find(self._view.templates, desired)
        if found is not None and domain.uid not in found.owners and found.domain != domain.uid:
            return DomainProblem(
                NAME_TAKEN,
                f"ResourceClaimTemplate {desired.namespace}/{desired.name} exists and does not belong to this"
                " ComputeDomain: delete it, or create the ComputeDomain with another name for its template",
            )
        self._ensure(self._view.templates, desired, found)
        return None

    def _daemons(self, domain: ComputeDomain) -> DomainProblem | None:
        sizes = [one.clique.slots for one in self._view.cliques.by("domain", domain.uid)]
        slots = slots_of(domain, self._settings.most_nodes, *sizes)
        # What is created for an account that is gone, as while the driver is uninstalled, is deleted at once.
        is_new = not self._view.daemon_sets.by("domain", domain.uid)
        account = self._read_account(_ACCOUNT_SECONDS if is_new else math.inf)
        if account is None:
            self._again(domain.uid, _ACCOUNT_PAUSE)
            name = f"{self._namespace}/{self._settings.service_account}"
            return DomainProblem(
                NO_ACCOUNT, f"there is no ServiceAccount {name}, which the daemons need: install the chart"
            )
        for desired in daemon_objects(domain, self._dialect, self._settings, self._namespace, account, slots):
            collection = self._collection(desired.kind)
            self._ensure(collection, desired, self._find(collection, desired))
        return None

    def _read_account(self, seconds: float) -> Account | None:
        """The daemons' account, as it was at most so many seconds ago."""
        if self._account is None or time.monotonic() - self._account_at > seconds:
            name = self._settings.service_account
            self._account_at = time.monotonic()
            try:
                value = self._client.get(SERVICE_ACCOUNTS, name, self._namespace)
                self._account = Account(name, value["metadata"]["uid"])
            except NotFoundError:
                self._account = None
        return self._account

    def _collection(self, kind: Kind) -> Collection[StoredFacts]:
        view = self._view
        known = (view.templates, view.daemon_sets, view.policies, view.certificates)
        return next(one for one in known if one.kind == kind)

    def _find(self, collection: Collection[StoredFacts], desired: Desired) -> StoredFacts | None:
        return next(iter(collection.by("name", f"{desired.namespace}/{desired.name}")), None)

    def _ensure(self, collection: Collection[StoredFacts], desired: Desired, found: StoredFacts | None) -> None:
        """Create, change or replace an object. Raises ApiError."""
        if found is not None and found.is_deleted:
            self._strip(desired.kind, found.namespace, found.name, found.uid, found.finalizers)
            return  # it is created again when it is gone
        if found is None:
            if desired.kind == NETWORK_POLICIES and not collection.listed:
                return  # an API server without policies
            self._create(collection, desired)
        elif FINALIZER in found.finalizers or not self._is_right(desired, found):
            if desired.needs_replacement(found.content):
                self._delete(collection, found)
                self._create(collection, desired)
                return
            change = desired.change(found)
            try:
                answer = self._write(
                    "patch", self._client.patch, desired.kind, desired.name, change, namespace=desired.namespace
                )
            except NotFoundError:
                collection.forget(found.uid)  # which makes this domain be looked at again
                return
            self._wrote(collection, desired, answer)

    def _is_right(self, desired: Desired, found: StoredFacts) -> bool:
        """Whether an object is as it should be, or as the server stored it when it got that: a webhook may change what
        it is given, and the server the form of a quantity.
        """
        if desired.is_stored(found.content):
            return True
        sent, stored = self._sent(desired).get(_place(desired), (None, None))
        return sent == desired.value and stored == found.content

    def _create(self, collection: Collection[StoredFacts], desired: Desired) -> None:
        try:
            answer = self._write("create", self._client.create, desired.kind, desired.value, desired.namespace)
        except ConflictError:
            # The watch lags, or the object lost the label by which it is watched.
            collection.store(self._client.get(desired.kind, desired.name, desired.namespace))
            raise
        self._wrote(collection, desired, answer)

    def _wrote(self, collection: Collection[StoredFacts], desired: Desired, answer: JSON) -> None:
        collection.store(answer)
        found = collection.get(answer["metadata"]["uid"])
        if found is not None:
            self._sent(desired)[_place(desired)] = (desired.value, found.content)

    def _sent(self, desired: Desired) -> dict[Place, tuple[JSON, object]]:
        return self._remember(desired.value["metadata"]["labels"][DOMAIN_LABEL]).objects

    # Nodes and members

    def _label(self, node: str, uid: str) -> DomainProblem | None:
        """Set the label of a node, or remove it if `uid` is empty."""
        for facts in self._view.nodes.by("name", node):
            meta = {"resourceVersion": facts.resource_version, "labels": {DOMAIN_LABEL: uid or None}}
            try:
                answer = self._write("patch", self._client.patch, NODES, node, {"metadata": meta})
            except NotFoundError:
                return None
            log.info("node %s: %s", node, f"label set to {uid}" if uid else "label removed")
            self._view.nodes.store(answer)
        return None

    def _write_cliques(self, domain: ComputeDomain) -> DomainProblem | None:
        account = self._account
        if account is not None:
            for name in [one.name for one in self._members(domain).cliques]:
                self._write_rows(domain, name, account)
        return None

    def _write_rows(self, domain: ComputeDomain, name: str, account: Account) -> None:
        """Write the rows of one clique. A daemon may write its own row at the same time, so this is tried again with
        the object as it is then.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            wanted = next((one for one in self._members(domain).cliques if one.name == name), None)
            if wanted is None:
                return
            found = next(iter(self._view.cliques.by("name", f"{self._namespace}/{name}")), None)
            try:
                self._write_clique(wanted, clique_object(wanted, account), found)
                return
            except (ConflictError, NotFoundError):
                if attempt == _ATTEMPTS:
                    raise
            try:
                self._view.cliques.store(self._client.get(CLIQUES, name, self._namespace))
            except NotFoundError:
                if found is not None:
                    self._view.cliques.forget(found.uid)

    def _write_clique(self, clique: Clique, value: JSON, found: CliqueFacts | None) -> None:
        if found is None:
            self._view.cliques.store(self._write("create", self._client.create, CLIQUES, value, clique.namespace))
            return
        same = replace(found.clique, namespace=clique.namespace) == clique and not found.broken
        if found.stored.is_deleted or (same and has_metadata(found.stored.content, value)):
            return
        meta = {**value["metadata"], "uid": found.uid, "resourceVersion": found.stored.resource_version}
        written = {**value, "metadata": meta}
        self._view.cliques.store(self._write("update", self._client.update, CLIQUES, written))

    # What users see

    def _report(self, domain: ComputeDomain, status: DomainStatus) -> None:
        memory = self._remember(domain.uid)
        self.ready[domain.uid] = status.is_ready
        current = self._view.domains.get(domain.uid)
        before = current.domain.status if current is not None and current.domain is not None else domain.status
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        last = memory.status or {}
        wanted = encode_status(status, domain.generation, before if before.get("conditions") else last, now)
        if all(before.get(key, []) == wanted[key] for key in wanted):
            return
        if wanted == memory.status and before == memory.stored_status:
            return  # NVIDIA's definition has no conditions, so the server dropped them
        left = memory.status_at + self._status_pause - time.monotonic()
        if left > 0:
            self._again(domain.uid, left)
            return
        change = {"metadata": {"uid": domain.uid}, "status": wanted}
        try:
            place = {"namespace": domain.namespace, "subresource": "status"}
            answer = self._write("patch", self._client.patch, COMPUTE_DOMAINS, domain.name, change, **place)
        except NotFoundError:
            return  # it was deleted
        memory.status, memory.stored_status = wanted, answer.get("status") or {}
        memory.status_at = time.monotonic()
        self._view.domains.store(answer)

    def _tell(self, domain: ComputeDomain, troubles: Iterable[DaemonProblem]) -> None:
        """Record Events about daemons that cannot start, on the domain and on the claims that wait for them."""
        memory = self._remember(domain.uid)
        serious = [one for one in troubles if one.reason in CANNOT_START]
        for one in serious:
            if (one.node, one.reason, one.text) in memory.told:
                continue
            text = f"node {one.node}: {one.text}"
            log.warning("ComputeDomain %s: %s: %s", domain, one.reason, text)
            version = COMPUTE_DOMAINS.api_version
            about = [ObjectReference(version, "ComputeDomain", domain.name, domain.namespace, domain.uid)]
            about += [
                ObjectReference(
                    claims_of(self._dialect).api_version, "ResourceClaim", claim.name, claim.namespace, claim.uid
                )
                for claim in self._view.claims.by("domain", domain.uid)
                if claim.namespace == domain.namespace and (one.node, domain.uid) in claim.channels
            ]
            for each in about:
                self._recorder.warning(each, one.reason, text)
        memory.told = frozenset((one.node, one.reason, one.text) for one in serious)

    def _remember(self, uid: str) -> _Memory:
        return self._memory.setdefault(uid, _Memory())

    # A domain that is gone

    def _remove(self, uid: str, domain: ComputeDomain | None) -> None:
        """Delete what belongs to a domain that is deleted. Raises ApiError after everything else was tried."""
        memory = self._remember(uid)
        if domain is None and not memory.is_gone and self._exists(uid):
            log.info("ComputeDomain %s is not known yet: nothing of it is deleted", uid)
            return
        memory.is_gone = True
        self.ready.pop(uid, None)
        errors: list[ApiError] = []
        self._try(errors, self._remove_daemons, uid)
        for found in self._view.templates.by("domain", uid):
            # The garbage collector deletes those that the ComputeDomain owns.
            if FINALIZER in found.finalizers and found.content["metadata"]["labels"].get(TARGET_LABEL) == "Workload":
                self._try(errors, self._delete, self._view.templates, found)
        if domain is not None:
            place = (COMPUTE_DOMAINS, domain.namespace, domain.name)
            self._try(errors, self._strip, *place, uid, domain.finalizers)
        if errors:
            raise errors[0]
        if uid not in self._view.known():
            self._memory.pop(uid, None)

    def _exists(self, uid: str) -> bool:
        """Whether the API server has the ComputeDomain, which a watch that lags may not know."""
        if uid not in self._view.known():
            return False
        found = self._client.list(COMPUTE_DOMAINS, metadata_only=True).items
        return any(one["metadata"]["uid"] == uid for one in found)

    def _remove_daemons(self, uid: str) -> DomainProblem | None:
        """Delete the objects in the driver's namespace, and remove the labels of nodes."""
        errors: list[ApiError] = []
        view = self._view
        for collection in (view.daemon_sets, view.policies, view.certificates, view.templates):
            for found in collection.by("name", f"{self._namespace}/{daemon_name(uid)}"):
                self._try(errors, self._delete, collection, found)
        for clique in view.cliques.by("domain", uid):
            self._try(errors, self._delete, view.cliques, clique.stored)
        for node in view.nodes.by("domain", uid):
            self._try(errors, self._label, node.name, "")
        if errors:
            raise errors[0]
        return None

    def _delete(self, collection: Collection[Any], found: StoredFacts) -> DomainProblem | None:
        self._strip(collection.kind, found.namespace, found.name, found.uid, found.finalizers)
        if found.is_deleted:
            return None
        with contextlib.suppress(NotFoundError):
            self._write("delete", self._client.delete, collection.kind, found.name, found.namespace, uid=found.uid)
        if not set(found.finalizers) - {FINALIZER}:
            collection.forget(found.uid)
        log.info("%s %s/%s: deleted", collection.kind.plural, found.namespace, found.name)
        return None

    def _strip(
        self, kind: Kind, namespace: str, name: str, uid: str, finalizers: tuple[str, ...]
    ) -> DomainProblem | None:
        """Remove the finalizer of NVIDIA's driver from an object."""
        if FINALIZER not in finalizers:
            return None
        place = f"/metadata/finalizers/{finalizers.index(FINALIZER)}"
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": place, "value": FINALIZER},
            {"op": "remove", "path": place},
        ]
        try:
            self._write("patch", self._client.json_patch, kind, name, operations, namespace=namespace)
        except NotFoundError:
            log.debug("%s %s/%s is gone", kind.plural, namespace, name)
        return None

    def _write(
        self, verb: str, work: Callable[Concatenate[Kind, P], R], kind: Kind, /, *given: P.args, **more: P.kwargs
    ) -> R:
        """Do one write of the client, and count it. Raises NotLeaderError."""
        if self._stop.is_set():
            raise NotLeaderError
        result = work(kind, *given, **more)
        self._writes.labels(kind.plural, verb).inc()
        return result


def _place(desired: Desired) -> Place:
    return desired.kind.plural, f"{desired.namespace}/{desired.name}"
