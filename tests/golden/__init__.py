# SPDX-License-Identifier: Apache-2.0
"""Answers that Kubernetes itself gave, and the harnesses that compare ours with them."""
