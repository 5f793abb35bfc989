# SPDX-License-Identifier: Apache-2.0
"""The embedded server answers as kube-apiserver 1.36.2 did."""

import pytest

from .conversation import Conversation, Partner, conversations, hold


@pytest.mark.parametrize("conversation", conversations(), ids=lambda conversation: conversation.name)
def test_the_answers_are_those_of_a_real_server(conversation: Conversation, api: Partner) -> None:
    answers = hold(conversation, api)
    for ours, theirs in zip(answers, conversation.recorded(), strict=True):
        assert ours == theirs
