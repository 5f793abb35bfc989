# SPDX-License-Identifier: Apache-2.0
"""kubelet's side: the sockets, how it finds this process among others, and the services that it calls.

The messages are in `kubeletplugin.protocol`.
"""
