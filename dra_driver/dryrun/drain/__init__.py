# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun drain`: takes devices out of use by DeviceTaintRules, and tells what that does to pods.

`targets` finds the devices that the user names. `rules` makes the objects that exclude them, and `effects` what these
do to the pods of the cluster. `result` has both, as documents and for people. Nothing is changed in a cluster.
"""
