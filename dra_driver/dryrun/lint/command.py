# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun lint`: the command, and the formats of its findings."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

import click

from ...process.streams import printable
from ...scheduler.cel import RELEASES
from ..documents import read_all
from ..options import Subcommand, files_argument, general_options, interrupted, version_options
from ..progress import bar, progress
from ..release import Rules
from ..report import Json, Line, Verbatim, counted, format_option, print_lines, print_report
from ..sources import Origin, opened, origin_options
from ..status import ExitStatus, documents_of
from .catalog import KnownObjects
from .check import LintBasis, Result, check
from .finding import RULES, LintFinding, Severity
from .reading import is_unreadable

_INDENT: Final = "\n    "


@dataclass(frozen=True, slots=True)
class LintReport:
    """The findings of a check. With `strict`, warnings count as much as errors. `errors`: a file cannot be read."""

    result: Result
    strict: bool = False
    errors: bool = False

    @property
    def status(self) -> ExitStatus:
        """The exit status."""
        decisive = [finding for finding in self.result.findings if self.strict or finding.severity is Severity.ERROR]
        return ExitStatus.of(fits=not decisive, errors=self.errors, unknown=bool(self.result.unknown))

    @property
    def summary(self) -> str:
        """One line with the number of findings and of objects."""
        result = self.result
        errors = sum(finding.severity is Severity.ERROR for finding in result.findings)
        warnings = len(result.findings) - errors
        found = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}" if result.findings else "nothing found"
        others = f", {counted(result.passed_over, 'object')} of other kinds ignored" if result.passed_over else ""
        return f"{found} in {counted(result.checked, 'object')} of {counted(result.files, 'file')}{others}"

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """A line for each finding, which editors can read. `wide` adds the path of the field and what the rule says."""
        for finding in self.result.findings:
            yield from map(Verbatim, str(finding).replace("\n", _INDENT).split("\n"))
            if wide:
                yield from (Verbatim(f"    {text}") for text in (finding.path, RULES[finding.rule].summary) if text)

    def annotations(self) -> Iterator[Line]:
        """A workflow command for each finding."""
        return (Verbatim(_annotation(finding)) for finding in self.result.findings)

    def document(self) -> Json:
        """The findings as plain dicts and lists."""
        result = self.result
        counts = {"files": result.files, "objects": result.checked, "passedOver": result.passed_over}
        findings = [{**asdict(finding), "severity": str(finding.severity)} for finding in result.findings]
        return {"findings": findings, "notes": documents_of(result.unknown), **counts}


def _annotation(finding: LintFinding) -> str:
    """A workflow command, which GitHub shows beside the line. Severities have the names of GitHub's levels."""
    properties = {
        "file": finding.file,
        "line": str(finding.line),
        "col": str(finding.column),
        "title": f"dra-dryrun {finding.rule}",
    }
    listed = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{finding.severity} {listed}::{_escaped(finding.text, '')}"


def _escaped(text: str, more: str) -> str:
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


@click.command(
    "lint",
    cls=Subcommand,
    examples=["dra-dryrun lint manifests", "dra-dryrun lint --built-in --strict -o github manifests"],
)
@files_argument()
@origin_options
@version_options(
    RELEASES,
    "The Kubernetes release that the files are for: its API versions, fields, feature gates and CEL functions.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with status 1 also if there are only warnings.",
)
@format_option("How the findings are printed. github prints annotations for a workflow.", more=["github"])
@general_options
def lint(
    files: tuple[str, ...],
    origin: Origin,
    rules: Rules,
    strict: bool,
    output: str,
) -> int:
    """Find mistakes in the claims, classes and pods in FILE before they are submitted.

    FILE contains YAML or JSON. '-' is standard input, and a folder means its YAML and JSON files. ResourceClaims,
    ResourceClaimTemplates, DeviceClasses, ResourceSlices and ComputeDomains are checked as a whole. In Pods and
    workloads, the parts about claims are checked. Other objects are ignored. Selectors are tried on the devices of your
    cluster or of --slices. With --built-in, or if no cluster is configured, they are tried on the built-in example
    nodes.

    The exit status is 0 without findings, 1 if there are errors (with --strict, also if there are only warnings), 2 if
    a file cannot be read, and 3 if there are no findings, but objects that were not checked.
    """
    if not files:
        raise click.UsageError("Missing argument: name a FILE, a folder, or '-' for standard input.")
    reading = read_all(files, lenient=True)
    with progress("reading the devices") as say, opened(origin, rules) as place:
        source = place.read(devices_only=True, machines=True)
        release = place.release_among(RELEASES)
        basis = LintBasis(release, KnownObjects(source.objects), source.where, origin.is_built_in, place.referred)
        result = check(reading, basis, lambda done, total: say(f"checking {bar(done, total)}"))
    if output in ("table", "wide"):
        click.echo(click.style(printable(f"checked with the devices of {source.where}"), bold=True), err=True)
    report = LintReport(result, strict, is_unreadable(reading))
    if output == "github":
        print_lines(report.annotations())
    else:
        print_report(report, output)
    for note in result.unknown:
        click.echo(printable(f"not known  {note}"), err=True)
    click.echo(report.summary, err=True)
    if result.left:
        return interrupted(f"{counted(result.left, 'object')} not checked")
    return report.status
