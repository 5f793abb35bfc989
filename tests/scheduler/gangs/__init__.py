# SPDX-License-Identifier: Apache-2.0
"""Tests of the verdict on groups of pods."""
