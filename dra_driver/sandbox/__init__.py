# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes cluster with simulated GPUs on one machine, for `dra-sandbox` and for tests.

`environment` combines a control plane (`controlplane`) with `nodes`. The control plane is the embedded `apiserver` with
stand-ins for Kubernetes' controllers (`scheduler`, `claimcontroller`, `workloads`), or Kubernetes' own programs. Each
node has a stand-in `kubelet` and the driver's real processes (`processes`). `programs` starts the programs of pods.
`watchedlists` remembers what the controllers list. `standins` has scripts in place of NVIDIA's programs.
`computedomains` has what a cluster with ComputeDomains needs. `proto` has the protobuf messages of Kubernetes. `main`
and `demo` are the commands.
"""
