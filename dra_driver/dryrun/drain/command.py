# SPDX-License-Identifier: Apache-2.0
"""The subcommand `drain`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click

from ...kube.api import ApiClient, newest_taint_rules
from ...kube.releases import has_rule
from ...kube.resource import DeviceTaint, DeviceTaintRule, TaintEffect
from ...kube.resource.names import is_label_key, is_label_value
from ...process.command import InputError, output_option
from ...scheduler.allocator import Cluster
from ..documents import read_all
from ..options import Subcommand, filename_option, general_options, release_options
from ..progress import bar, progress
from ..release import Rules
from ..report import print_lines, print_report
from ..rights import Needs
from ..selection import OpenLabels
from ..snapshot import written
from ..sources import Origin, Place, Source, opened, origin_options
from ..status import NotesError
from ..successors import Progress
from ..whatif import WhatIf, what_if_options
from ..workload import decode_document
from .completion import complete_health, complete_target
from .effects import DrainAnalysis, Effects, taints_of
from .result import DrainResult, RuleFacts
from .rules import DRAIN_KEY, encoded_rule, policy_for, rules_for, version_of
from .targets import PublishedDevice, PublishedDevices, Wanted

_EFFECTS = (TaintEffect.NO_EXECUTE, TaintEffect.NO_SCHEDULE, TaintEffect.NONE)


@click.command(
    "drain",
    cls=Subcommand,
    examples=[
        "dra-dryrun drain node-1/5 | kubectl apply -f -",
        "dra-dryrun drain node-1/5 --undo | kubectl delete -f -",
        "dra-dryrun drain 'NVIDIA A100*' --effect NoSchedule -o table",
        "dra-dryrun drain --health ecc --slices cluster.json",
        "dra-dryrun drain -f rules.yaml -o table",
    ],
)
@click.argument("targets", nargs=-1, metavar="[NODE|NODE/GPU|MODEL]...", shell_complete=complete_target)
@filename_option
@click.option("--selector", metavar="CEL", default="", help="Only devices that this CEL expression selects.")
@click.option(
    "--driver-version", metavar="VERSION", default="", help="Only devices with this NVIDIA driver, or a glob."
)
@click.option(
    "--health",
    metavar="REASON",
    default="",
    shell_complete=complete_health,
    help="Only devices with this health finding: xid, xid=79, ecc, ... or any.",
)
@click.option(
    "--effect",
    type=click.Choice(list(map(str, _EFFECTS))),
    default=str(TaintEffect.NO_EXECUTE),
    show_default=True,
    help="NoExecute evicts the pods that do not tolerate the taint, NoSchedule only keeps new pods away.",
)
@click.option("--taint", metavar="KEY[=VALUE]", default=DRAIN_KEY, show_default=True, help="The taint of the rules.")
@click.option("--undo", is_flag=True, help="Print the way back: the rules to delete.")
@origin_options
@what_if_options
@release_options
@output_option(
    ("yaml", "table", "wide", "json"),
    None,
    "yaml prints the rules, and the explanation to standard error. json has both.",
)
@general_options
def drain(  # noqa: PLR0913, PLR0917  # one for each flag
    targets: tuple[str, ...],
    more_files: tuple[str, ...],
    selector: str,
    driver_version: str,
    health: str,
    effect: str,
    taint: str,
    undo: bool,
    origin: Origin,
    what_if: WhatIf,
    rules: Rules,
    output: str,
) -> int:
    """Print DeviceTaintRules that take devices out of use, and tell what they do to pods.

    A target is a node, a GPU of a node (node-1/5, or its UUID or PCI bus ID), a MIG device (node-1/NAME), or a model.
    The answer names the pods that are evicted, with tolerations and their time limits, the pods that can no longer
    start, where the pods would go, and which fit nowhere then. -f FILE asks the same of DeviceTaintRules in a file.

    The cluster is only read. The rules have the version of the API that the cluster serves. If it serves none, the
    output is a rule for the driver's policy (a value of the chart), which keeps new pods away.

    The exit status is 0 if all pods find a place, 1 if a pod fits nowhere then, 2 if the input is wrong or cannot be
    read, and 3 if the pods of the cluster are not known.
    """
    wanted = Wanted(targets, selector, driver_version, health)
    asked = bool(targets or selector or driver_version or health)
    if more_files and (asked or undo):
        raise InputError("-f FILE has the rules: name no targets, conditions or --undo with it")
    if not (asked or more_files or undo):
        raise click.UsageError("Missing argument: name a NODE, NODE/GPU or MODEL, or give --selector or -f FILE.")
    key, _, value = taint.partition("=")
    if not is_label_key(key) or not is_label_value(value):
        raise InputError(f"--taint: {taint!r} is not of the form KEY or KEY=VALUE, as a label")
    with opened(origin, rules, Needs(whole_pods=True)) as place, progress("reading the cluster") as say:
        source = place.gather(what_if, devices_only=False)
        say("placing")
        question = _Question(place, source, lambda done, total: say(f"placing {bar(done, total)}"))
        if more_files:
            found = question.of_files(more_files)
        elif undo:
            found = question.of_undo(wanted if asked else None, DeviceTaint(key, effect, value))
        else:
            found = question.of_targets(wanted, DeviceTaint(key, effect, value))
    if output == "yaml":
        print_lines(found.lines(wide=False), stderr=True)
        click.echo(written(found.objects, "yaml"), nl=False)
    else:
        print_report(found, output)
    return found.status


@dataclass(frozen=True)
class _Question:
    """The cluster that was read, and answers about it."""

    place: Place
    source: Source
    tell: Progress

    def of_targets(self, wanted: Wanted, taint: DeviceTaint) -> DrainResult:
        """Rules for the devices that the user names. Raises InputError."""
        published = PublishedDevices.of(self.source.objects)
        devices = published.find(wanted, self.place.features, self.source.where)
        if not self._version:
            return self._result(wanted.words, self._effect.of_withdrawn(devices), [policy_for(devices)])
        rules = rules_for(devices, published, taint)
        there = {rule.metadata.name for rule in self._existing}
        notes = [
            f"the cluster has the rule {rule.metadata.name} already" for rule in rules if rule.metadata.name in there
        ]
        return self._of_rules(wanted.words, self._effect.of_rules(rules), rules, notes[:1])

    def of_files(self, files: tuple[str, ...]) -> DrainResult:
        """The effects of the rules in files. Raises InputError."""
        read = read_all(files)
        if read.problems:
            raise NotesError(*(problem.note for problem in read.problems))
        decoded = [(document, decode_document(document)) for document in read.documents]
        for document, rule in decoded:
            if not isinstance(rule, DeviceTaintRule):
                raise InputError(f"{document}: drain -f reads DeviceTaintRules, and this is a {document.kind}")
        rules = [rule for _, rule in decoded if isinstance(rule, DeviceTaintRule)]
        if not rules:
            raise InputError(f"{' '.join(files)}: there is no DeviceTaintRule in it")
        if not self._version:
            raise InputError(f"{self.source.where} serves no DeviceTaintRules: these rules have no effect there")
        return self._of_rules(f"rules in {', '.join(files)}", self._effect.of_rules(rules), rules)

    def of_undo(self, wanted: Wanted | None, taint: DeviceTaint) -> DrainResult:
        """The undo: the rules of the cluster with this taint, or the rules that a drain prints. Raises InputError."""
        published = PublishedDevices.of(self.source.objects)
        devices = list(published.devices)
        if wanted is not None:
            devices = published.find(wanted, self.place.features, self.source.where)
        words = wanted.words if wanted is not None else f"all devices with the taint {taint.key}"
        if not self._version:
            return self._result(words, self._effect.of_withdrawn([]), [policy_for(devices)], is_undo=True)
        own = [rule for rule in self._existing if rule.taint.key == taint.key]
        rules = [rule for rule in own if _facts(rule, devices, self._every).devices]
        notes: list[str] = []
        if not rules:
            if wanted is None or self._existing or self.place.connection is not None:
                raise InputError(f"{self.source.where} has no DeviceTaintRule with the taint {taint.key} for {words}")
            rules = rules_for(devices, published, taint)
            notes = [f"no DeviceTaintRule is known in {self.source.where}: these are the rules that a drain makes"]
        return self._of_rules(words, self._effect.of_end(rules), rules, notes, is_undo=True)

    def _of_rules(
        self,
        words: str,
        effects: Effects,
        rules: Sequence[DeviceTaintRule],
        notes: Sequence[str] = (),
        *,
        is_undo: bool = False,
    ) -> DrainResult:
        devices = PublishedDevices.of(self.source.objects).devices
        facts = [_facts(rule, devices, self._every) for rule in rules]
        objects = [encoded_rule(rule, self._version) for rule in rules]
        return self._result(words, effects, objects, facts, notes, is_undo=is_undo)

    @cached_property
    def _version(self) -> str:
        """The version of DeviceTaintRules that is served; empty if there are none."""
        features = self.place.features
        if self.place.connection is not None and features.device_taint_rules:
            found = newest_taint_rules(ApiClient(self.place.connection))
            return found.api_version if found is not None else ""
        switched_on = self.source.gates.get("DRADeviceTaintRules", bool(self._existing))
        return version_of(features, asked=switched_on)

    @property
    def _existing(self) -> list[DeviceTaintRule]:
        return [object_ for object_ in self.source.objects if isinstance(object_, DeviceTaintRule)]

    @property
    def _every(self) -> bool:
        """Whether a rule without a selector taints all devices."""
        return has_rule(self.place.features.release, "rule_without_selector_taints_all")

    @property
    def _effect(self) -> DrainAnalysis:
        source = self.source
        labels = OpenLabels(source.open_nodes)
        return DrainAnalysis(Cluster.of(source.objects), source.world, self.place.features, labels, self.tell)

    def _result(
        self,
        words: str,
        effects: Effects,
        objects: Sequence[dict[str, Any]],
        facts: Sequence[RuleFacts] = (),
        notes: Sequence[str] = (),
        *,
        is_undo: bool = False,
    ) -> DrainResult:
        source = self.source
        said = (*source.warnings, *source.notes, *notes)
        unknown = (*source.unknown, *source.unknown_of_pods)
        return DrainResult(
            source.where, words, effects, objects, facts, self._version, is_undo, source.assumptions, said, unknown
        )


def _facts(rule: DeviceTaintRule, devices: Sequence[PublishedDevice], every: bool) -> RuleFacts:
    return RuleFacts(rule, Counter(device.driver for device in devices if taints_of((rule,), device, every)))
