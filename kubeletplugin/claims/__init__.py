# SPDX-License-Identifier: Apache-2.0
"""The life of claims on this node: `lifecycle` is asked, `actions` carries out and undoes, `recovery` and `leftovers`
put right what is not as it should be.
"""
