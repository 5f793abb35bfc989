# SPDX-License-Identifier: Apache-2.0
"""From the name of a claim to what has to be done for it, and whether that can stand beside other claims.

`reader` asks the API server, `plan` and `overlap` are pure, `planning` joins them with the GPUs of the node.
"""
