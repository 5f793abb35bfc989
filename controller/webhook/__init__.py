# SPDX-License-Identifier: Apache-2.0
"""The admission webhook: refuses objects with an invalid configuration for this driver when they are created.

Without the webhook, the same mistakes are found when a pod's claim is prepared on its node. `review` decides, and
`server` serves HTTPS for the API server and reloads the certificate when it changes.
"""
