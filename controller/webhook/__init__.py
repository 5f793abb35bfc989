# SPDX-License-Identifier: Apache-2.0
"""The admission webhook: refuses objects whose configuration for this driver is wrong when they are made.

Without it the same mistakes are found when a pod's claim is prepared on its node. `review` decides, `server`
speaks HTTPS with the API server and keeps the certificate current.
"""
