# SPDX-License-Identifier: Apache-2.0
"""Who a request comes from, and what they may do."""
