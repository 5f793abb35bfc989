# SPDX-License-Identifier: Apache-2.0
"""The generated messages are those of the .proto files."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from kubeletplugin.protocol import cri_pb2, dra_v1_pb2, health_v1_pb2, registration_pb2

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "generated",
    [cri_pb2.DESCRIPTOR, dra_v1_pb2.DESCRIPTOR, health_v1_pb2.DESCRIPTOR, registration_pb2.DESCRIPTOR],
    ids=lambda one: one.name,
)
def test_generated_code_is_up_to_date(generated: FileDescriptor, tmp_path: Path) -> None:
    output = tmp_path / "set"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={output}", generated.name]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (source,) = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file
    committed = descriptor_pb2.FileDescriptorProto()
    generated.CopyToProto(committed)
    for message in source.message_type:
        _forget_json_names(message)
    assert committed == source, "run `make proto`"


def _forget_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """The compiler writes them, generated code leaves them out."""
    for one in message.field:
        one.ClearField("json_name")
    for nested in message.nested_type:
        _forget_json_names(nested)
