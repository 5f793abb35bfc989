# SPDX-License-Identifier: Apache-2.0
"""The claim manager: it prepares the claims of a pod before the pod runs, and unprepares them after its end.

Checks, checkpoints and calls have kubelet's order, so a plugin sees the same as on a real node: one call for each
driver with all claims that are not prepared, claims in the checkpoint before the call, and unprepare also for claims
whose prepare never succeeded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dra_driver.kube.api import ApiError, StatusError
from dra_driver.kube.resource import ResourceClaim

from .apiclient import KubernetesCluster
from .journal import Journal
from .model import KubeletPod, PodClaim
from .plugin import Plugin
from .plugins import Plugins
from .state import PREPARE, UNPREPARE, ClaimCache, ClaimError, ClaimInfo, check_answer, check_claim, claims_of
from .wire import ClaimRef


class ClaimManager:
    """Prepares and unprepares claims. All methods may be called from any thread, for different pods concurrently."""

    def __init__(self, cache: ClaimCache, cluster: KubernetesCluster, plugins: Plugins, journal: Journal) -> None:
        self._cache = cache
        self._cluster = cluster
        self._plugins = plugins
        self._journal = journal

    def prepare(self, pod: KubeletPod) -> None:
        """Prepare all claims of the pod. Raises ClaimError with kubelet's text. It can be called again."""
        checked = [self._checked(pod, wanted) for wanted in claims_of(pod)]
        plugins = {driver: plugin for _, usable in checked for driver, plugin in usable.items()}
        batches: dict[str, list[ClaimRef]] = {}
        with self._cache.lock:
            for claim, usable in checked:
                info = self._reference(pod, claim, usable)
                if not info.prepared:
                    for driver in info.devices:
                        batches.setdefault(driver, []).append(info.ref)
        for driver, refs in sorted(batches.items()):
            self._prepare_batch(driver, plugins[driver], refs)
        with self._cache.lock:
            # only after every driver succeeded: if one fails, all of them are called again
            for ref in {ref for refs in batches.values() for ref in refs}:
                self._cache.put(replace(self._cache.known(ref.namespace, ref.name), prepared=True))
            self._save()

    def unprepare(self, pod_uid: str) -> None:
        """Unprepare the pod's claims that no other pod uses. Raises ClaimError. It can be called again."""
        batches: dict[str, list[ClaimRef]] = {}
        last = []
        with self._cache.lock:
            for info in self._cache.all():
                if pod_uid not in info.pods:
                    continue
                if others := info.pods - {pod_uid}:
                    self._cache.put(replace(info, pods=others))
                    continue
                last.append(info.ref)
                for driver in info.devices:
                    batches.setdefault(driver, []).append(info.ref)
        for driver, refs in sorted(batches.items()):
            check_answer(UNPREPARE, refs, self._plugins.get(driver).call(UNPREPARE, refs))
            self._record("ClaimsUnprepared", driver, refs)
        with self._cache.lock:
            for ref in last:
                self._cache.remove(ref)
            self._save()

    def reconcile(self, active: frozenset[str]) -> None:
        """Unprepare claims that only pods other than `active` (UIDs) use. Failures are recorded and retried later."""
        for uid in frozenset().union(*(info.pods for info in self._cache.all())) - active:
            try:
                self.unprepare(uid)
            except ClaimError as error:
                self._journal.record("ClaimReconcileFailed", uid, str(error))

    def _checked(self, pod: KubeletPod, wanted: PodClaim) -> tuple[ResourceClaim, Mapping[str, Plugin]]:
        """Return the claim, and the plugin of each of its drivers. This changes nothing."""
        try:
            claim = self._cluster.get_claim(pod.namespace, wanted.claim)
        except ApiError as error:
            text = error.message if isinstance(error, StatusError) else str(error)
            raise ClaimError(f"fetch ResourceClaim {wanted.claim}: {text}") from error
        drivers = check_claim(pod, wanted, claim)
        return claim, {driver: self._plugins.get(driver) for driver in sorted(drivers)}

    def _reference(self, pod: KubeletPod, claim: ResourceClaim, drivers: Iterable[str]) -> ClaimInfo:
        """Record in the checkpoint that the pod uses the claim."""
        meta = claim.metadata
        info = self._cache.get(meta.namespace, meta.name)
        if info is None:
            info = ClaimInfo(ClaimRef(meta.namespace, meta.name, meta.uid), devices=dict.fromkeys(drivers, ()))
        elif info.ref.uid != meta.uid:
            raise ClaimError(
                f"old ResourceClaim with same name {meta.name} and different UID {info.ref.uid} "
                "still exists (previous pod force-deleted?!)"
            )
        info = replace(info, pods=info.pods | {pod.uid})
        self._cache.put(info)
        self._save()
        return info

    def _prepare_batch(self, driver: str, plugin: Plugin, refs: list[ClaimRef]) -> None:
        answer = plugin.call(PREPARE, refs)
        check_answer(PREPARE, refs, answer)
        with self._cache.lock:
            for ref in refs:
                info = self._cache.known(ref.namespace, ref.name)
                # devices are added, because a plugin that is called again must return the same ids
                devices = (*info.devices.get(driver, ()), *answer[ref.uid].devices)
                self._cache.put(replace(info, devices={**info.devices, driver: devices}))
        self._record("ClaimsPrepared", driver, refs)

    def _record(self, reason: str, driver: str, refs: Iterable[ClaimRef]) -> None:
        self._journal.record(reason, driver, ", ".join(f"{ref.namespace}/{ref.name}" for ref in refs))

    def _save(self) -> None:
        try:
            self._cache.save()
        except OSError as error:
            raise ClaimError(f"checkpoint ResourceClaim state: {error}") from error
