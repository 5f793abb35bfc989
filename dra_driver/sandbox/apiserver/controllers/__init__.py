# SPDX-License-Identifier: Apache-2.0
"""What the server does on its own after a write: custom kinds, namespaces, garbage.

A real cluster does some of this in kube-controller-manager. Nothing else of that is here: no service accounts are
made, and nodes have no lifecycle. `dra_driver.sandbox.workloads` makes pods.
"""
