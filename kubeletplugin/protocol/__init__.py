# SPDX-License-Identifier: Apache-2.0
"""The messages between kubelet and a DRA plugin, and those with which `check` asks a container runtime (`cri`).

The .proto files have the wire format of kubelet's APIs. Kubernetes defines the names and numbers of packages, services,
messages and fields. `make proto` generates the *_pb2 modules.

An older version of a service (v1beta1 of DRA, v1alpha1 of health) has the same messages under another package, which
is not sent. It lacks only share_id, which its readers skip. So the messages of v1 serve all versions.
"""
