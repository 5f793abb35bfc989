# SPDX-License-Identifier: Apache-2.0
"""Records what a real kube-apiserver answers: `python -m tests.sandbox.apiserver.record URL TOKEN [NAME...]`.

The server needs every version of resource.k8s.io switched on, and nothing besides it that makes or changes objects: no
controller manager, no admission that waits for one. Beside a fresh etcd at its usual address:

    openssl genrsa -out sa.key
    echo TOKEN,admin,admin,system:masters > tokens.csv
    kube-apiserver --etcd-servers=http://127.0.0.1:2379 --cert-dir=. --token-auth-file=tokens.csv \
      --authorization-mode=RBAC --service-cluster-ip-range=10.0.0.0/24 --service-account-issuer=https://localhost/ \
      --service-account-key-file=sa.key --service-account-signing-key-file=sa.key \
      --disable-admission-plugins=ServiceAccount,TaintNodesByCondition \
      --runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true,resource.k8s.io/v1alpha3=true

URL is then https://127.0.0.1:6443. A second recording of an unchanged server changes no file.
"""

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
        conversation.record(answers)
        print(f"{conversation.name}: {len(answers)} answers")


if __name__ == "__main__":
    main()
