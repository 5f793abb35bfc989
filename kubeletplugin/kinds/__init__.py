# SPDX-License-Identifier: Apache-2.0
"""The kinds of devices, one file or folder each, with the steps that make them. `settings` has the settings of whole
GPUs, which several features need.
"""
