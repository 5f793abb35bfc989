# SPDX-License-Identifier: Apache-2.0
"""apps and batch: defaults, rules and columns of the kinds for which `dra_driver.sandbox.workloads` makes pods."""
