# SPDX-License-Identifier: Apache-2.0
"""NVSwitch partitions for claims: activated, deactivated, and kept when Fabric Manager is restarted (`partitions`)."""
