# SPDX-License-Identifier: Apache-2.0
"""What a request does, once it is known who asks for what: one module a verb."""
