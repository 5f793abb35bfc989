# SPDX-License-Identifier: Apache-2.0
"""The node agent: kubelet asks it to prepare claims for pods, and to undo that.

`service` and `registration` speak kubelet's protocol, `lifecycle` carries a claim through its life, `plan` decides
what a claim needs (pure), `mig` and `claimspecs` do it and undo it, `records` remember it, `recovery` puts things
right after a crash. `gpus` is the way to the hardware, which may come late or go away.
"""
