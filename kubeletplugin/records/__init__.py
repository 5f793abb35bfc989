# SPDX-License-Identifier: Apache-2.0
"""The records of claims: written before any step of a claim, and deleted after all steps are undone.

`format` is the format of a record, `store` has the files, `ledger` has all records and the claim of each device, and
`locks` are the locks of claims and GPUs.
"""
