# SPDX-License-Identifier: Apache-2.0
"""The one life of a claim on this node, for devices of all kinds.

`model` has all that the engine knows of devices and changes, and `call` who asks and until when. kubelet's calls reach
`engine`, which plans a claim (`planner`, `reader`), records it (`records`, `cache`, `files`), changes the node
(`changes`) and writes the CDI spec (`specs`, `metadata`). `recovery` and `sweep` restore claims and clean up after
crashes and errors. `locks` exclude other threads and processes, `boot` tells of which boot the marks are, and
`boundary` contains unexpected errors.
"""
