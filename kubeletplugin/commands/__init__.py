# SPDX-License-Identifier: Apache-2.0
"""The commands `status` and `cleanup`. The command `check` has a package of its own."""
