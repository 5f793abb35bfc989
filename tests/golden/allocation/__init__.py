# SPDX-License-Identifier: Apache-2.0
"""Golden scenarios of device allocation, and how to read and judge them; README.md describes the format."""
