# SPDX-License-Identifier: Apache-2.0
"""The life of claims on this node.

kubelet's calls reach `lifecycle`. `actions` carries out plans and undoes them. `recovery` and `leftovers` restore
claims and clean up after crashes and errors. `boundary` contains unexpected errors.
"""
