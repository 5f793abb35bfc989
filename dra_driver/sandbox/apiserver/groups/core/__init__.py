# SPDX-License-Identifier: Apache-2.0
"""The core group: pods, nodes, namespaces, events and the small kinds around them."""
