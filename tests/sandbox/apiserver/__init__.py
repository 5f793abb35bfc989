# SPDX-License-Identifier: Apache-2.0
"""The embedded API server, over real sockets, and against what a real kube-apiserver answered."""
