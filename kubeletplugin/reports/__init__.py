# SPDX-License-Identifier: Apache-2.0
"""What the plugin writes to claims in the API server: device status, Events, binding conditions."""
