# SPDX-License-Identifier: Apache-2.0
"""The wire: what a URL means, which representation is wanted, and the bytes of the answer."""
