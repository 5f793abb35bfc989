# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' protobuf messages: their definitions, and the classes that are made of them.

The `.proto` files have the names, types and numbers of fields, which Kubernetes has in the struct tags of its Go types.
No package for Python has those of a current release. `api/core/v1.proto` is the Go package `k8s.io/api/core/v1`. Fields
have their names in JSON, and two notes on how Go writes JSON:

- `optional` is a Go pointer. JSON has its zero value. Fields without `optional` have no zero values in JSON.
- `json_name = "inline"` is an embedded message. JSON has its fields in the parent object.

`python -m tests.sandbox.refresh_proto` adds the fields of a new release. protoc compiles the definitions to one
FileDescriptorSet when the wheel is built (`hatch_build.py` calls `compile_definitions`). A checkout has none: there,
they are compiled for the first message of a process.
"""

import functools
import importlib.util
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ...errors import ProgramError, TimeLimitError
from ...process.programs import run_program

FOLDER: Final = Path(__file__).parent
COMPILED: Final = FOLDER / "kubernetes.binpb"
"""The FileDescriptorSet in a wheel."""
_PROTOC_SECONDS: Final = 60.0
"""The time limit of protoc, which takes less than a second."""


class NotCompiledError(Exception):
    """The definitions are not compiled, and protoc is not installed or fails."""


_lock: Final = threading.Lock()
"""Several threads need messages, and all classes must come from one pool."""


def message_class(name: str) -> type[Message]:
    """Return the class of a message such as `k8s.io.api.core.v1.Pod`. Raises KeyError or NotCompiledError."""
    with _lock:
        return _class(name)


@functools.cache
def _class(name: str) -> type[Message]:
    return GetMessageClass(_pool().FindMessageTypeByName(name))


@functools.cache
def _pool() -> DescriptorPool:
    """Return a pool of these definitions only, so that definitions of other packages cannot conflict with them."""
    compiled = COMPILED.read_bytes() if COMPILED.is_file() else compile_definitions()
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return pool


def compile_definitions() -> bytes:
    """Return the FileDescriptorSet of the `.proto` files, which is the same each time. Raises NotCompiledError."""
    if importlib.util.find_spec("grpc_tools") is None:
        raise NotCompiledError(
            "the definitions of Kubernetes' protobuf messages are not compiled: install a wheel of dra-driver-gpu, or"
            " protoc for this checkout: pip install 'grpcio-tools>=1.74,<2'"
        )
    files = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.proto"))
    return protoc(FOLDER, files)


def protoc(root: Path, files: list[str]) -> bytes:
    """Return the FileDescriptorSet of files below `root` and of what they import. Raises NotCompiledError."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", "--include_imports"]
        try:
            ended = run_program([*command, f"--descriptor_set_out={output}", *files], _PROTOC_SECONDS)
        except (ProgramError, TimeLimitError) as error:
            raise NotCompiledError(f"protoc cannot compile the definitions in {root}: {error}") from error
        if ended.code:
            raise NotCompiledError(f"protoc cannot compile the definitions in {root}: it {ended}")
        return output.read_bytes()
