# SPDX-License-Identifier: Apache-2.0
"""Whole pods: what kube-scheduler and the API server decide (README.md), and the harness that compares."""
