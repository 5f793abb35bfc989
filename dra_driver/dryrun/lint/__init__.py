# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun lint`: mistakes in claims, classes and pods, found in the files before anything is submitted.

`source` reads files into objects that know their lines, `mend` decodes them and collects every error of form,
`catalog` is what is known of devices and classes, and each of the other files has the rules about one thing: a rule
is a pure function from an object (`subject`) to issues. `check` applies all of them, `report` prints.
"""

from .command import lint

__all__ = ["lint"]
