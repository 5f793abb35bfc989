# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes cluster with simulated GPUs on one machine, for `dra-sandbox` and for tests.

`environment` combines a control plane (`controlplane`: the embedded `apiserver` with stand-in controllers, or
Kubernetes' own programs) with `nodes`. Each node has a stand-in `kubelet` and the driver's real processes.
"""
