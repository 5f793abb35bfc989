# SPDX-License-Identifier: Apache-2.0
"""The connection to kubelet: the sockets, the registration, and the services that kubelet calls.

The messages are in `kubeletplugin.protocol`.
"""
