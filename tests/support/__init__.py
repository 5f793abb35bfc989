# SPDX-License-Identifier: Apache-2.0
"""Helpers that tests of several packages share."""
