# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun repack`: which pods must move so that a demand fits.

`command` has the options, `goals` makes units of demand of them, and `question` asks `dra_driver.scheduler.repack`.
`result` prints the plan with pictures, `script` the commands that carry it out, and `hints` what would help if no moves
do. `packing` has the report on what a perfect packing would add.
"""
