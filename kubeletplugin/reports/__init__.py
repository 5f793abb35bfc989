# SPDX-License-Identifier: Apache-2.0
"""The plugin's reports about claims in the API server: device status, Events, binding conditions."""
