# SPDX-License-Identifier: Apache-2.0
"""From the name of a claim to its plan, and whether other claims allow it.

`planning` reads the claim from the API server and compares it with the claims that already have devices. `plan` is
pure.
"""
