# SPDX-License-Identifier: Apache-2.0
"""Records what a real kube-apiserver answers: `python -m tests.sandbox.apiserver.record URL TOKEN [NAME...]`.

The server needs every version of resource.k8s.io switched on, admission without ServiceAccount,
and nothing else that makes or changes objects: no controller manager.
"""

import json
import sys

import urllib3

from .conversation import Partner, conversations, hold


def main() -> None:
    """Holds all conversations, or the named ones, with the server and writes the recordings."""
    url, token, *names = sys.argv[1:]
    urllib3.disable_warnings()
    partner = Partner(url, token, None)
    for conversation in conversations():
        if names and conversation.name not in names:
            continue
        answers = hold(conversation, partner)
        conversation.recording.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{conversation.name}: {len(answers)} answers")


if __name__ == "__main__":
    main()
