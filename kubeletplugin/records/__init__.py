# SPDX-License-Identifier: Apache-2.0
"""The records of claims: written before anything is done for a claim, and deleted after everything is undone.

`format` is a record as bytes, `store` has the files, `ledger` has all records and the owner of each device, and
`locks` decides who may work on a claim or a GPU.
"""
