# SPDX-License-Identifier: Apache-2.0
"""What the API server is told of claims, and what it tells of them: device statuses, Events, binding conditions."""
