# SPDX-License-Identifier: Apache-2.0
"""The messages between kubelet and a DRA plugin.

The .proto files have the wire format of kubelet's APIs. Kubernetes defines the names and numbers of packages, services,
messages and fields. `make proto` generates the *_pb2 modules.
"""
