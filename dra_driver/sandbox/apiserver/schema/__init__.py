# SPDX-License-Identifier: Apache-2.0
"""What objects look like: types, where they come from, and reading JSON by them.

`types` is the one description that decoding, strategic merge, server-side apply and OpenAPI
work with; `published` makes it from Kubernetes' own schemas.
"""
