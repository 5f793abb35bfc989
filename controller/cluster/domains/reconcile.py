# SPDX-License-Identifier: Apache-2.0
"""Writes the differences between the stored and the desired objects of a domain.

A watch may lag. So a ComputeDomain that a watch does not know is looked for once more before the objects of its domain
are deleted. Two processes that both believe to be the leader do no harm. Each write is complete in itself, so a process
that is killed after any of them leaves a state from which the next one continues.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ParamSpec

from dra_driver.domains.names import DOMAIN_LABEL, TARGET_LABEL, daemon_name
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, Clique, ComputeDomain
from dra_driver.kube.api import ApiError, ConflictError, Kind, NotFoundError
from dra_driver.kube.api.client import JSON
from dra_driver.kube.api.events import EventRecorder, ObjectReference
from dra_driver.kube.kinds import NODES, SERVICE_ACCOUNTS

from ..collection import Collection
from .facts import CliqueFacts, StoredFacts
from .membership import Membership, membership, slots_of
from .objects import (
    FINALIZER,
    Account,
    Desired,
    clique_object,
    daemon_objects,
    has_metadata,
    workload_template,
)
from .queue import Queue
from .settings import DomainSettings
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
from .view import DomainView
from .writer import ObjectWriter

log = logging.getLogger(__name__)

_ACCOUNT_PAUSE = 10.0  # seconds between two looks for a service account that is missing
_ACCOUNT_SECONDS = 1.0  # how long one that was found is not looked for again, for a new domain
_ATTEMPTS = 5


P = ParamSpec("P")


@dataclass(slots=True)
class _Memory:
    """What is remembered of a domain. Losing it costs only requests."""

    is_gone: bool = False
    status: JSON | None = None  # as sent
    stored_status: JSON | None = None  # as the server stored that
    status_at: float = 0.0
    told: frozenset[tuple[str, str, str]] = frozenset()


class Reconciler:
    """Reconciles one domain at a time on each thread. No two threads may reconcile the same one at once.

    A domain that has to be looked at again without a change is added to `queue`.
    """

    def __init__(
        self, view: DomainView, writer: ObjectWriter, settings: DomainSettings, recorder: EventRecorder, queue: Queue
    ) -> None:
        self._view = view
        self._writer = writer
        self._settings = settings
        self._recorder = recorder
        self._queue = queue
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
        if self._settings.daemons.host_managed:
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
            members = membership(state, self._settings.namespace, self._settings.daemons.most_nodes)
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
        return membership(self._view.state(domain), self._settings.namespace, self._settings.daemons.most_nodes)

    def _workload_template(self, domain: ComputeDomain) -> DomainProblem | None:
        desired = workload_template(
            domain, self._view.cluster.dialect, host_managed=self._settings.daemons.host_managed
        )
        found = self._find(self._view.templates, desired)
        if found is not None and domain.uid not in found.owners and found.domain != domain.uid:
            return DomainProblem(
                NAME_TAKEN,
                f"ResourceClaimTemplate {desired.namespace}/{desired.name} exists and does not belong to this"
                " ComputeDomain: delete it, or create the ComputeDomain with another name for its template",
            )
        self._writer.ensure(self._view.templates, desired, found)
        return None

    def _daemons(self, domain: ComputeDomain) -> DomainProblem | None:
        sizes = [facts.clique.slots for facts in self._view.cliques.by("domain", domain.uid)]
        slots = slots_of(domain, self._settings.daemons.most_nodes, *sizes)
        # What is created for an account that is gone, as while the driver is uninstalled, is deleted at once.
        is_new = not self._view.daemon_sets.by("domain", domain.uid)
        account = self._read_account(_ACCOUNT_SECONDS if is_new else math.inf)
        if account is None:
            self._queue.later(domain.uid, _ACCOUNT_PAUSE)
            name = f"{self._settings.namespace}/{self._settings.daemons.service_account}"
            return DomainProblem(
                NO_ACCOUNT, f"there is no ServiceAccount {name}, which the daemons need: install the chart"
            )
        for desired in daemon_objects(domain, self._view.cluster.dialect, self._settings, account, slots):
            collection = self._collection(desired.kind)
            self._writer.ensure(collection, desired, self._find(collection, desired))
        return None

    def _read_account(self, seconds: float) -> Account | None:
        """The daemons' account, as it was at most so many seconds ago."""
        if self._account is None or time.monotonic() - self._account_at > seconds:
            name = self._settings.daemons.service_account
            self._account_at = time.monotonic()
            try:
                value = self._writer.client.get(SERVICE_ACCOUNTS, name, self._settings.namespace)
                self._account = Account(name, value["metadata"]["uid"])
            except NotFoundError:
                self._account = None
        return self._account

    def _collection(self, kind: Kind) -> Collection[StoredFacts]:
        view = self._view
        known = (view.templates, view.daemon_sets, view.policies, view.certificates)
        return next(collection for collection in known if collection.kind == kind)

    def _find(self, collection: Collection[StoredFacts], desired: Desired) -> StoredFacts | None:
        return next(iter(collection.by("name", f"{desired.namespace}/{desired.name}")), None)

    # Nodes and members

    def _label(self, node: str, uid: str) -> DomainProblem | None:
        """Set the label of a node, or remove it if `uid` is empty."""
        for facts in self._view.cluster.nodes.by("name", node):
            meta = {"resourceVersion": facts.resource_version, "labels": {DOMAIN_LABEL: uid or None}}
            try:
                answer = self._writer.patch(NODES, node, {"metadata": meta})
            except NotFoundError:
                return None
            log.info("node %s: %s", node, f"label set to {uid}" if uid else "label removed")
            self._view.cluster.nodes.store(answer)
        return None

    def _write_cliques(self, domain: ComputeDomain) -> DomainProblem | None:
        account = self._account
        if account is not None:
            for name in [clique.name for clique in self._members(domain).cliques]:
                self._write_rows(domain, name, account)
        return None

    def _write_rows(self, domain: ComputeDomain, name: str, account: Account) -> None:
        """Write the rows of one clique. A daemon may write its own row at the same time, so this is tried again with
        the current object.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            wanted = next((clique for clique in self._members(domain).cliques if clique.name == name), None)
            if wanted is None:
                return
            found = next(iter(self._view.cliques.by("name", f"{self._settings.namespace}/{name}")), None)
            try:
                self._write_clique(wanted, clique_object(wanted, account), found)
                return
            except (ConflictError, NotFoundError):
                if attempt == _ATTEMPTS:
                    raise
            try:
                self._view.cliques.store(self._writer.client.get(CLIQUES, name, self._settings.namespace))
            except NotFoundError:
                if found is not None:
                    self._view.cliques.forget(found.uid)

    def _write_clique(self, clique: Clique, value: JSON, found: CliqueFacts | None) -> None:
        if found is None:
            self._view.cliques.store(self._writer.create(CLIQUES, value, clique.namespace))
            return
        same = replace(found.clique, namespace=clique.namespace) == clique and not found.broken
        if found.stored.is_deleted or (same and has_metadata(found.stored.content, value)):
            return
        meta = {**value["metadata"], "uid": found.uid, "resourceVersion": found.stored.resource_version}
        written = {**value, "metadata": meta}
        self._view.cliques.store(self._writer.update(CLIQUES, written))

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
        left = memory.status_at + self._settings.timing.status - time.monotonic()
        if left > 0:
            self._queue.later(domain.uid, left)
            return
        change = {"metadata": {"uid": domain.uid}, "status": wanted}
        try:
            answer = self._writer.patch(
                COMPUTE_DOMAINS, domain.name, change, namespace=domain.namespace, subresource="status"
            )
        except NotFoundError:
            return  # it was deleted
        memory.status, memory.stored_status = wanted, answer.get("status") or {}
        memory.status_at = time.monotonic()
        self._view.domains.store(answer)

    def _tell(self, domain: ComputeDomain, troubles: Iterable[DaemonProblem]) -> None:
        """Record Events about daemons that cannot start, on the domain and on the claims that wait for them."""
        memory = self._remember(domain.uid)
        serious = [trouble for trouble in troubles if trouble.reason in CANNOT_START]
        for trouble in serious:
            if (trouble.node, trouble.reason, trouble.text) in memory.told:
                continue
            text = f"node {trouble.node}: {trouble.text}"
            log.warning("ComputeDomain %s: %s: %s", domain, trouble.reason, text)
            version = COMPUTE_DOMAINS.api_version
            about = [ObjectReference(version, "ComputeDomain", domain.name, domain.namespace, domain.uid)]
            about += [
                ObjectReference(
                    self._view.cluster.claims.kind.api_version, "ResourceClaim", claim.name, claim.namespace, claim.uid
                )
                for claim in self._view.cluster.claims.by("domain", domain.uid)
                if claim.namespace == domain.namespace and (trouble.node, domain.uid) in claim.channels
            ]
            for each in about:
                self._recorder.warning(each, trouble.reason, text)
        memory.told = frozenset((trouble.node, trouble.reason, trouble.text) for trouble in serious)

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
                self._try(errors, self._writer.delete, self._view.templates, found)
        if domain is not None:
            place = (COMPUTE_DOMAINS, domain.namespace, domain.name)
            self._try(errors, self._writer.strip, *place, uid, domain.finalizers)
        if errors:
            raise errors[0]
        if uid not in self._view.known():
            self._memory.pop(uid, None)
            self._writer.forget(uid)

    def _exists(self, uid: str) -> bool:
        """Whether the API server has the ComputeDomain, which a watch that lags may not know."""
        if uid not in self._view.known():
            return False
        found = self._writer.client.list(COMPUTE_DOMAINS, metadata_only=True).items
        return any(item["metadata"]["uid"] == uid for item in found)

    def _remove_daemons(self, uid: str) -> DomainProblem | None:
        """Delete the objects in the driver's namespace, and remove the labels of nodes."""
        errors: list[ApiError] = []
        view = self._view
        for collection in (view.daemon_sets, view.policies, view.certificates, view.templates):
            for found in collection.by("name", f"{self._settings.namespace}/{daemon_name(uid)}"):
                self._try(errors, self._writer.delete, collection, found)
        for clique in view.cliques.by("domain", uid):
            self._try(errors, self._writer.delete, view.cliques, clique.stored)
        for node in view.labelled(uid):
            self._try(errors, self._label, node.name, "")
        if errors:
            raise errors[0]
        return None
