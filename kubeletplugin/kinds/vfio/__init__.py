# SPDX-License-Identifier: Apache-2.0
"""GPUs for virtual machines, which are bound to a vfio driver, and back.

`device` is the kind, and `machine` what it has in common with vGPUs; `edits` is what containers get, with the variables
of KubeVirt (`kubevirt`). `step` binds a GPU with `binder`, which writes to sysfs with a time limit (`writes`).
"""
