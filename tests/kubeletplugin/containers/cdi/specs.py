# SPDX-License-Identifier: Apache-2.0
"""Specs that several tests start from."""

from kubeletplugin.containers.cdi import ContainerEdits, Mount
from kubeletplugin.containers.cdi.spec import CdiDevice, DeviceNode, Hook, Spec

NODE = DeviceNode("/dev/nvidia0")
EDITS = ContainerEdits(device_nodes=(NODE,))
MINIMAL = Spec("nvidia.com/gpu", (CdiDevice("gpu0", EDITS),))

CLAIM_KIND = "k8s.gpu.nvidia.com/claim"


def large(device: str) -> Spec:
    """A claim's spec of some 50 KB, which takes a while to write."""
    paths = (f"/usr/lib64/library-{index}" for index in range(400))
    return Spec(CLAIM_KIND, (CdiDevice(device, ContainerEdits(mounts=tuple(Mount(path, path) for path in paths))),))


EVERYTHING = Spec(
    kind="nvidia.com/gpu",
    devices=(
        CdiDevice(
            name="gpu0",
            container_edits=ContainerEdits(
                env=("A=1", "B="),
                device_nodes=(
                    DeviceNode(
                        path="/dev/nvidia0",
                        host_path="/host/dev/nvidia0",
                        type="c",
                        major=195,
                        minor=3,
                        file_mode=0o640,
                        permissions="rw",
                        gid=44,
                    ),
                ),
                mounts=(Mount("/lib/a", "/lib/b", ("ro", "bind")),),
                hooks=(Hook("createContainer", "/bin/hook", ("hook", "run"), ("X=y",)),),
                additional_gids=(44,),
            ),
        ),
    ),
    container_edits=ContainerEdits(env=("C=2",)),
)
"""Every field that there is."""

EVERYTHING_JSON = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {
            "name": "gpu0",
            "containerEdits": {
                "env": ["A=1", "B="],
                "deviceNodes": [
                    {
                        "path": "/dev/nvidia0",
                        "hostPath": "/host/dev/nvidia0",
                        "type": "c",
                        "major": 195,
                        "minor": 3,
                        "fileMode": 416,
                        "permissions": "rw",
                        "gid": 44,
                    }
                ],
                "mounts": [{"hostPath": "/lib/a", "containerPath": "/lib/b", "options": ["ro", "bind"]}],
                "hooks": [
                    {
                        "hookName": "createContainer",
                        "path": "/bin/hook",
                        "args": ["hook", "run"],
                        "env": ["X=y"],
                    }
                ],
                "additionalGids": [44],
            },
        }
    ],
    "containerEdits": {"env": ["C=2"]},
}
"""EVERYTHING as SPEC.md of the Container Device Interface spells it."""
