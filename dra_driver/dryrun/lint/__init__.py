# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun lint`: mistakes in claims, classes and pods, found in the files before anything is submitted.

`source` reads files into objects with their lines, `subject` decodes the objects and collects every error of form,
and `catalog` has the known devices and classes. `form`, `claims`, `configs`, `selectors` and `pods` have the rules: a
rule is a pure function from an object to issues. `check` applies all rules, and `command` prints the findings.
"""

from .command import lint

__all__ = ["lint"]
