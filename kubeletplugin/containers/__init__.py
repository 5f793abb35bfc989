# SPDX-License-Identifier: Apache-2.0
"""The files that give containers the devices of a claim: CDI specs, and metadata files."""
