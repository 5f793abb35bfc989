# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun gangs`: whether groups of pods are placed as a whole.

`grouping` finds the groups among documents. `ask` gives kube-scheduler's own verdict and searches for an assignment of
all pods at once (`dra_driver.scheduler.gangs`). `changes` finds changes with which the scheduler places a group that it
refuses. `printed` writes the answers.
"""
