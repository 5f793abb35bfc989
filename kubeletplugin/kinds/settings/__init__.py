# SPDX-License-Identifier: Apache-2.0
"""Settings of whole GPUs that several features need: the hardware (`hardware`), and the steps with their marks."""
