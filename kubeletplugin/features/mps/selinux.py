# SPDX-License-Identifier: Apache-2.0
"""Gives folders the SELinux type that containers may use.

Folders below /var/lib/kubelet have the type container_var_lib_t, whose sockets and files a confined container
(container_t) may not use. With container_file_t it may, and new files get the type of their folder. A container may
also connect to the sockets of a privileged container (spc_t), such as that of dra-mps. See container.te and
container.fc of https://github.com/containers/container-selinux (2026-07). NVIDIA's device plugin relabels its pipe
directory in the same way.

A folder has a label if the kernel uses SELinux. /sys/fs/selinux, in which programs usually look, is not mounted in
containers. Only the type is replaced, because user, role and level are up to the policy of the node.
"""

import logging
import os
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

LABEL: Final = "security.selinux"
_TYPE: Final = b"container_file_t"


def let_containers_use(folder: Path) -> None:
    """Set the type of a folder, if it has a label. A policy that refuses this is logged, because it may have other
    rules for containers.
    """
    try:
        label = os.getxattr(folder, LABEL).rstrip(b"\0")
    except OSError:  # SELinux is disabled
        return
    user, _, rest = label.partition(b":")
    role, _, rest = rest.partition(b":")
    kind, colon, level = rest.partition(b":")
    if kind == _TYPE:
        return
    wanted = b":".join([user, role, _TYPE]) + colon + level
    try:
        os.setxattr(folder, LABEL, wanted)
    except OSError as error:
        log.warning(
            "containers may not be able to use MPS: SELinux label %s of %s cannot be set: %s",
            wanted.decode(errors="replace"),
            folder,
            error.strerror,
        )
