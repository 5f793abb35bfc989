# SPDX-License-Identifier: Apache-2.0
"""The embedded server answers as kube-apiserver 1.36.2 did."""

from pathlib import Path

import pytest

from dra_driver.sandbox.apiserver import RunningServer

from .conversation import Conversation, Partner, conversations, hold


@pytest.mark.parametrize("conversation", conversations(), ids=lambda conversation: conversation.name)
def test_the_answers_are_those_of_a_real_server(
    conversation: Conversation, server: RunningServer, tmp_path: Path
) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(server.certificate_authority or b"")
    answers = hold(conversation, Partner(server.url, server.admin_token, str(authority)))
    for ours, theirs in zip(answers, conversation.recorded(), strict=True):
        assert ours == theirs
