# SPDX-License-Identifier: Apache-2.0
"""What containers get for a claim: CDI specs, and files with the attributes of its devices."""
