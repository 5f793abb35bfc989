# SPDX-License-Identifier: Apache-2.0
"""kubelet's side: the sockets, how kubelet finds this process, and the services that kubelet calls.

The messages are in `kubeletplugin.protocol`.
"""
