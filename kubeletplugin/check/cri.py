# SPDX-License-Identifier: Apache-2.0
"""Asks a container runtime for its release and its configuration, over its socket and the CRI that kubelet uses.

The CRI's Status has a map `info`, which a runtime fills in if it is asked to be verbose. `config` in it is the
configuration that the runtime has in effect, as JSON:

- containerd: the configuration of its CRI plugin (internal/cri/server/status.go; 1.7: pkg/cri/server/status.go)
- CRI-O, from 1.33 on: its RuntimeConfig, under `crio` (server/runtime_status.go)

It may contain passwords of registries, so none of its texts is shown, except the folders of CDI specs.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from dra_driver.process.programs import excerpt

from ..errors import RuntimeAnswerError
from ..protocol import cri_pb2
from .host import Host

T = TypeVar("T", bound=Message)

_SERVICE: Final = "/runtime.v1.RuntimeService/"
_MOST_BYTES: Final = 1 << 20
"""containerd's answer has some 10 KiB."""
_OPTIONS: Final = (("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.enable_retries", 0))


@dataclass(frozen=True, slots=True)
class RuntimeAnswer:
    """What a runtime tells: its name (`containerd`, `cri-o`), its release, and the JSON of its configuration, which is
    empty if it does not tell it.
    """

    name: str
    version: str
    config: str

    @property
    def reported(self) -> str:
        """`containerd://2.1.4`, as kubelet writes it to its Node."""
        return f"{self.name}://{self.version}"


def ask_runtime(host: Host, path: str, seconds: float = 5.0) -> RuntimeAnswer:
    """Ask the runtime whose socket is `path` of the host. Each of two calls has `seconds`. Raises RuntimeAnswerError.

    Whoever can write to this socket has all rights on the node. Therefore, links to it are not followed.
    """
    try:
        descriptor = host.descriptor(path)
    except OSError as error:
        raise RuntimeAnswerError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(kind):
            raise RuntimeAnswerError(f"{path} is a symbolic link, which is not followed")
        if not stat.S_ISSOCK(kind):
            raise RuntimeAnswerError(f"{path} is not a socket")
        with grpc.insecure_channel(f"unix:/proc/self/fd/{descriptor}", options=_OPTIONS) as channel:
            asked = cri_pb2.VersionRequest()
            version = _call(channel, "Version", asked, cri_pb2.VersionResponse.FromString, seconds)
            request = cri_pb2.StatusRequest(verbose=True)
            status = _call(channel, "Status", request, cri_pb2.StatusResponse.FromString, seconds)
    except grpc.RpcError as error:
        raise RuntimeAnswerError(f"{path} does not answer: {_reason(error)}") from None
    finally:
        os.close(descriptor)
    name, release = (excerpt(text, 100) for text in (version.runtime_name, version.runtime_version))
    return RuntimeAnswer(name, release, status.info.get("config", ""))


def _call(channel: grpc.Channel, method: str, request: Message, response: Callable[[bytes], T], seconds: float) -> T:
    call: Any = channel.unary_unary(
        _SERVICE + method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=response,
    )
    answer: T = call(request, timeout=seconds)
    return answer


def _reason(error: grpc.RpcError) -> str:
    if not isinstance(error, grpc.Call):
        return excerpt(str(error))
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "it does not serve the CRI, so kubelet cannot use it (for example, Docker's packages disable it)"
    return f"{error.code().name} ({excerpt(error.details() or 'without details')})"
