# SPDX-License-Identifier: Apache-2.0
"""MIG devices: the kind (`device`), the steps that make them (`mode`, `instance`) with their marks (`marks`), and the
changes of MIG through NVML (`instances`).
"""
