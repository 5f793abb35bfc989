# SPDX-License-Identifier: Apache-2.0
"""The records of claims: written before any step of a claim, and deleted after all steps are undone.

`files` has the files of either driver, and `cache` keeps them in memory. `format` is the format of records with GPUs.
`ledger` has all of these records and the claim of each device, and `locks` are the locks of claims and GPUs.
"""
