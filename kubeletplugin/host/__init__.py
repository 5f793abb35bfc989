# SPDX-License-Identifier: Apache-2.0
"""Programs, kernel modules and processes of the host, which the plugin reaches through the host's first process."""
