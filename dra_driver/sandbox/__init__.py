# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes cluster with simulated GPUs on one machine, for `dra-sandbox` and for tests.

`environment` puts it together from a control plane (`controlplane`: the embedded `apiserver` and stand-in controllers,
or `real`: Kubernetes' own programs) and from `nodes`, each with a stand-in `kubelet` and the driver's real processes.
"""
