# SPDX-License-Identifier: Apache-2.0
"""Objects in memory: `store` holds them and their recent history, `listing` reads it for list and watch."""
