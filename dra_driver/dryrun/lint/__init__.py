# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun lint`: mistakes in claims, classes and pods, found in the files before anything is submitted.

Files are read by `documents`, as for all subcommands. `reading` makes findings of what cannot be read, and knows the
lines of issues. `subject` decodes the objects and collects every error of form, `catalog` has the known devices and
classes, and `finding` lists the rules. `form`, `claims`, `configs`, `domains`, `selectors` and `pods` have the checks:
pure functions from an object, a class, a claim or a request to issues. `check` calls all of them, and `command` prints
the findings.
"""
