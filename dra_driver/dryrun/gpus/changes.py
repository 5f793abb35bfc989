# SPDX-License-Identifier: Apache-2.0
"""What has changed between two states of the GPUs, a line for each change."""

from collections.abc import Iterable, Iterator, Mapping

from .model import UsedNode


def changes(before: Iterable[UsedNode], after: Iterable[UsedNode]) -> Iterator[str]:
    """The differences in words, in the order of the nodes. Facts that ended come before new facts."""
    old, new = _facts(before), _facts(after)
    yield from (f"{subject}: {gone}" for (subject, fact), (_, gone) in old.items() if (subject, fact) not in new)
    yield from (f"{subject}: {came}" for (subject, fact), (came, _) in new.items() if (subject, fact) not in old)


def _facts(nodes: Iterable[UsedNode]) -> Mapping[tuple[str, str], tuple[str, str]]:
    """By subject (`node-1/gpu-5`) and fact: the texts for the start and for the end of the fact."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for node in nodes:
        name = node.name or "(several nodes)"
        for gpu in node.gpus:
            subject = f"{name}/{gpu.name}"
            found[subject, ""] = (f"is published ({gpu.model})", "is no longer published")
            for taint in gpu.taints:
                found[subject, taint.text] = (f"taint {taint.text}", f"the taint {taint.text} is gone")
            for device, use in gpu.uses:
                found[subject, f"{device.name} {use.claim} {use.pods}"] = _told(
                    device.kind, use.claim, use.pods, use.owner
                )
        for other in node.others:
            for device in other.devices:
                for use in device.uses:
                    told = _told(device.name, use.claim, use.pods, use.owner)
                    found[f"{name}/{other.driver}", f"{device.name} {use.claim} {use.pods}"] = told
    return found


def _told(device: str, claim: str, pods: Iterable[str], owner: str) -> tuple[str, str]:
    names = ", ".join(pods)
    user = (
        f"pod {names}{f' ({owner})' if owner else ''} with claim {claim}" if names else f"claim {claim} without a pod"
    )
    return f"{device} is used by {user}", f"{device} is no longer used by {user}"
