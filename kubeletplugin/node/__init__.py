# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the node as this process has them (`gpus`), and the marks of what was changed for claims (`marks`)."""
