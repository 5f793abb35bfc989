# SPDX-License-Identifier: Apache-2.0
"""The functions and macros of the environment, one library a file."""
