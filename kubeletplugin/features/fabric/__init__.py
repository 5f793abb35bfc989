# SPDX-License-Identifier: Apache-2.0
"""NVSwitch partitions for claims: which one a claim needs (`plan`), the step that activates it (`step`), and the
changes through Fabric Manager (`partitions`).
"""
