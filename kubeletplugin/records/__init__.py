# SPDX-License-Identifier: Apache-2.0
"""What the plugin remembers of claims: on the disk before anything is done, gone after all of it is undone.

`format` is a record as bytes, `store` the files, `ledger` all of them and whose each device is, `locks` who may act.
"""
