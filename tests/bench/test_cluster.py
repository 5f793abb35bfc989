# SPDX-License-Identifier: Apache-2.0
"""The large cluster of the measurements is one that a scheduler could have made."""

from dra_driver.dryrun.stock import Stocktaker
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import BY_API_VERSION, decode
from dra_driver.scheduler.allocator import Cluster, Features

from .cluster import objects


def test_no_device_and_no_counter_of_the_cluster_is_in_use_twice() -> None:
    made = objects(20, 200)
    cluster = Cluster.of(
        decode(object_)
        for object_ in made
        if object_["apiVersion"] in (*BY_API_VERSION, "v1")
        and object_["kind"] in ("Node", "ResourceSlice", "ResourceClaim", "DeviceClass")
    )
    held = [
        (result.driver, result.pool, result.device)
        for claim in cluster.claims
        for result in (claim.allocation.results if claim.allocation else ())
        if result.share_id is None
    ]
    assert len(held) == len(set(held))
    assert not [pool.problem for pool in Stocktaker(Features()).count(cluster) if pool.problem]


def test_pods_refer_to_the_claims_that_are_reserved_for_them() -> None:
    made = objects(20, 200)
    pods = {object_["metadata"]["uid"]: object_ for object_ in made if object_["kind"] == "Pod"}
    claims = [decode(object_) for object_ in made if object_["kind"] == "ResourceClaim"]
    assert len(pods) == 200
    for claim in claims:
        assert isinstance(claim, ResourceClaim)
        for consumer in claim.reserved_for:
            (status,) = pods[consumer.uid]["status"]["resourceClaimStatuses"]
            assert status["resourceClaimName"] == claim.metadata.name
