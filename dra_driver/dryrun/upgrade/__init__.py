# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun upgrade`: what another Kubernetes release, other feature gates or another policy of the driver change.

The release of the cluster is called `now`, the other one `then` (`sides`). Each module compares one aspect of the two
and yields Differences (`difference`): `gates`, `rules` and `versions` compare the releases, `fields`, `expressions` and
`pools` the objects, and `pods`, `claims` and `manifests` the verdicts. `policy` makes the slices that nodes would
publish under another policy. `comparison` puts all of them together, and `report` prints them.
"""
