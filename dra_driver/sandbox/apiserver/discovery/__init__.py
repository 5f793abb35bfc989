# SPDX-License-Identifier: Apache-2.0
"""What is served, told to clients: groups, versions and resources; OpenAPI documents."""
