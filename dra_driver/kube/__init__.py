# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' side of the driver: the types of resource.k8s.io (`resource`), the kinds of objects and where the API
server has them (`kinds`), and a client for the API server (`api`).

`resource` needs no API server, and does not import `api`.
"""
