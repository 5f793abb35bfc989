# SPDX-License-Identifier: Apache-2.0
"""The definitions of Kubernetes' protobuf messages, and how a newer release is added to them."""

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from dra_driver.sandbox.proto import FOLDER, compile_definitions
from tests.sandbox.refresh_proto import Field, described, files_of, merged, messages_of

GO = """\
type Job struct {
\tmetav1.TypeMeta `json:",inline"`
\tLimit  *int32      `json:"limit,omitempty" protobuf:"varint,1,opt,name=limit"`
\tPolicy JobPolicy   `json:"policy" protobuf:"bytes,2,opt,name=policyText,casttype=JobPolicy"`
\tItems  []Part      `json:"items" protobuf:"bytes,3,rep,name=items"`
\tLabels map[string]string `json:"labels" protobuf:"bytes,4,rep,name=labels"`
\tPart   `json:",inline" protobuf:"bytes,5,opt,name=part"`
}
"""
PROTO = """\
syntax = "proto2";
package k8s.io.api.batch.v1;
message Part {}
message Job {
  optional int32 limit = 1;
  optional string policyText = 2;
  repeated Part items = 3;
  map<string, string> labels = 4;
  optional Part part = 5;
}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree of Kubernetes with one package."""
    package = tmp_path / "staging/src/k8s.io/api/batch/v1"
    package.mkdir(parents=True)
    (package / "types.go").write_text(GO, encoding="utf-8")
    (package / "generated.proto").write_text(PROTO, encoding="utf-8")
    return tmp_path


def test_definitions_are_as_the_program_writes_them() -> None:
    known = described(FileDescriptorSet.FromString(compile_definitions()))
    written = {str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.proto")}
    assert files_of(known) == written


def test_messages_of_a_tree_have_names_of_json_and_pointers_of_go(tree: Path) -> None:
    assert messages_of(tree)["k8s.io.api.batch.v1.Job"] == {
        1: Field("limit", "int32", pointer=True, inlined=False),
        2: Field("policy", "string", pointer=False, inlined=False),
        3: Field("items", "repeated .k8s.io.api.batch.v1.Part", pointer=False, inlined=False),
        4: Field("labels", "map<string, string>", pointer=False, inlined=False),
        5: Field("part", ".k8s.io.api.batch.v1.Part", pointer=False, inlined=True),
    }


def test_fields_that_the_tree_does_not_have_stay(tree: Path) -> None:
    older = Field("older", "string", pointer=False, inlined=False)
    added = merged({"k8s.io.api.batch.v1.Job": {9: older}}, messages_of(tree))
    assert {1, 9} <= added["k8s.io.api.batch.v1.Job"].keys()


def test_folder_without_kubernetes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not a source tree of Kubernetes"):
        messages_of(tmp_path)
