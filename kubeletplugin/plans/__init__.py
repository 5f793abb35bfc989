# SPDX-License-Identifier: Apache-2.0
"""From the name of a claim to the work for it, and whether other claims allow that.

`planning` reads the claim from the API server and compares it with the claims that have devices already; `plan` is
pure.
"""
