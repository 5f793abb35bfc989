# SPDX-License-Identifier: Apache-2.0
"""The messages between kubelet and a DRA plugin.

The .proto files here state the wire format of kubelet's APIs: package, service, message and field names and
numbers are fixed by Kubernetes. The *_pb2 modules are made from them by `make proto`.
"""
