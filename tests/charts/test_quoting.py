# SPDX-License-Identifier: Apache-2.0
"""Text that users give stays text, whatever a YAML parser takes it for without quotes.

The chart is rendered twice: with a plain word everywhere, and with a word that YAML takes for something else. Both must
be the same objects but for the word.
"""

import json
import re
from functools import cache
from typing import Any

import pytest
import yaml

from .rendering import JSON, merged, render_files

PLAIN = "qqq"
NAMES = ("y", "no", "on", "null", "1e3", "0x10")
"""Words that Kubernetes takes for the name of an object."""
TEXTS = (*NAMES, "~", "2001-01-01", "1_000", "12:30:45", "a: b", "a #b", "&a", "@a", "}", '"')
"""Words that users give where names are not asked for."""


class Loader(yaml.CSafeLoader):
    """YAML as the strictest reader takes it: PyYAML's YAML 1.1, and what it leaves out of 1.1 and 1.2."""


Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:y|Y|n|N)$"), list("yYnN"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)
# Whatever it is taken for, it is no text.
for _tag in ("bool", "float", "int"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", lambda _, node: ("not a text", node.tag, node.value))


def workload(word: str) -> JSON:
    """Values of a workload with the word wherever text may be."""
    return {
        "priorityClassName": word,
        "podAnnotations": {word: word},
        "podLabels": {word: word},
        "nodeSelector": {word: word},
        "tolerations": [{"key": word, "operator": "Equal", "value": word}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": word, "operator": "In", "values": [word]}]}
        ]}}},
    }  # fmt: skip


def container(word: str) -> JSON:
    """Values of a container with the word wherever text may be."""
    return {"env": [{"name": word, "value": word}], "resources": {"limits": {"cpu": word}}}


def values(name: str, text: str) -> JSON:
    """Values with a name wherever names of objects are asked for, and a text wherever any text may be."""
    return {
        "nameOverride": name,
        "fullnameOverride": name,
        "image": {"repository": text, "tag": text},
        "imagePullSecrets": [{"name": text}],
        "serviceAccount": {"name": text, "annotations": {text: text}},
        "nvidiaDriverRoot": f"/{text}",
        "nvidiaCDIHookPath": f"/{text}",
        "policy": {"gpus": [{"match": {"models": [text], "nodes": [text]}}]},
        "podMonitor": {"create": "always", "labels": {text: text}},
        "resources": {
            "computeDomains": {
                "imex": {"hostSocketPath": f"/{text}d", "tls": {"issuerName": text}},
                "daemon": {"priorityClassName": text},
            }
        },
        "kubeletPlugin": {
            **workload(text),
            "kubeletRegistrarDirectoryPath": f"/{text}a",
            "kubeletPluginsDirectoryPath": f"/{text}b",
            "cdiRoot": f"/{text}c",
            "check": {"enabled": True},
            "metrics": {"metricsPath": f"/{text}"},
            "networkPolicy": {"enabled": True},
            "containers": {"controller": container(text), "kubeletplugin": container(text)},
        },
        "controller": {**workload(text), "replicas": 2, "containers": {"clusterController": container(text)}},
        "webhook": {
            **workload(text),
            "enabled": True,
            "replicas": 2,
            "serviceAccount": {"name": text},
            "tls": {"mode": "cert-manager", "certManager": {"dnsNames": [text]}},
        },
        "resourceQuota": {"create": "always"},
        "test": {"deviceClassName": text},
    }


OTHERS: dict[str, Any] = {
    "as above": lambda name, text: {},
    "namespace": lambda name, text: {"namespaceOverride": name},
    "own certificate": lambda name, text: {
        "webhook": {"tls": {"mode": "secret", "secret": {"name": text, "caBundle": name}}}
    },
    "own issuer": lambda name, text: {
        "webhook": {"tls": {"certManager": {"issuerType": "issuer", "issuerName": text}}}
    },
    "services": lambda name, text: {
        "podMonitor": {"create": "never"},
        "serviceMonitor": {"create": "always", "labels": {text: text}, "interval": "30s"},
    },
    "cleanup": lambda name, text: {"cleanup": {"enabled": True}},
    "simulated": lambda name, text: {"simulatedNode": text, "nvidiaDriverRoot": ""},
}


def rendered(what: str, name: str, text: str) -> list[Any]:
    """The objects, with everything that is no text marked."""
    given = merged(values(name, text), OTHERS[what](name, text))
    files = render_files(given, namespace=name, release=name)
    contents = (content for file, content in sorted(files.items()) if file.endswith(".yaml"))
    return [value for content in contents for value in parsed(content)]


@cache
def parsed(content: str) -> list[Any]:
    """The objects of a file, which nobody changes."""
    return list(yaml.load_all(content, Loader))


@cache
def plain(what: str) -> str:
    """What is rendered with plain words, as JSON."""
    return json.dumps(rendered(what, PLAIN, PLAIN.upper()))


def expected(what: str, name: str, text: str) -> Any:
    """What is rendered with plain words, with the words in their place."""
    inner = json.dumps(text)[1:-1]
    return json.loads(plain(what).replace(PLAIN.upper(), inner).replace(PLAIN, name))


def without_policy(objects: list[Any]) -> list[str]:
    """The objects but for the policy, which is YAML in a text."""
    return sorted(json.dumps(one, sort_keys=True) for one in objects if one and one["kind"] != "ConfigMap")


@pytest.mark.parametrize(
    ("what", "word"),
    [(what, word) for number, what in enumerate(OTHERS) for word in (TEXTS[number % 4 :: 4] if number else TEXTS)],
)
def test_text_stays_text(what: str, word: str) -> None:
    name = word if word in NAMES else "name"
    objects = rendered(what, name, word)
    assert without_policy(objects) == without_policy(expected(what, name, word))
    (policy,) = (one["data"]["policy.yaml"] for one in objects if one and one["kind"] == "ConfigMap")
    assert yaml.load(policy, Loader) == {"gpus": [{"match": {"models": [word], "nodes": [word]}}]}


def test_a_value_that_is_not_quoted_would_be_noticed() -> None:
    for word in ("y", "on", "1e3", "0x10", "null", "~"):
        assert yaml.load(f"a: {word}", Loader) != {"a": word}
