# SPDX-License-Identifier: Apache-2.0
"""Requests that make no sense are refused; nothing that a client sends is an error of the server."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.support import examples

from .conftest import CONFIG_MAPS
from .conversation import Partner, conversations

Place = tuple[str | int, ...]

STRANGE: list[Any] = [None, [], {}, "", 0, -1, "x", True, [None], [[]], {"a": None}, 1.5, [{}], ["a", "a"], 10**30]
ANSWERED_BY_THE_LOG = "see the server's log"


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Where something could be put in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*here, key)
        yield from places(item, (*here, key))


def spoiled(body: Any, chance: random.Random) -> Any:
    """The body with something strange in one place."""
    body = copy.deepcopy(body)
    *path, last = chance.choice(list(places(body)))
    parent = body
    for key in path:
        parent = parent[key]
    parent[last] = copy.deepcopy(chance.choice(STRANGE))
    return body


@pytest.mark.parametrize("seed", range(examples(6)))
def test_a_body_with_something_strange_in_it_is_no_error_of_the_server(seed: int, talk: Callable[..., Partner]) -> None:
    chance = random.Random(seed)
    steps = [step for conversation in conversations() for step in conversation.steps if step.get("body")]
    with ApiServer(ApiServerOptions(minor=36)) as server:
        api = talk(server)
        for step in steps:
            method, _, path = step["do"].replace("NS", "default").partition(" ")
            body = spoiled(step["body"], chance) if isinstance(step["body"], dict) else step["body"]
            _, _, answer = api.ask(method, path, body, Content_Type=step.get("type", ""))
            assert ANSWERED_BY_THE_LOG not in str(answer), (step["do"], body)


@pytest.mark.parametrize(
    "selector",
    [
        *("x gt 1", "x>a", "x=1,", "x,,y", ",", "x=a b", "x in 1", "x in (1", "!x=1", "x=!", "x=(1)", "x in 1)"),
        *("/x=1", "a/b/c", "x/=1", "x=-", 'x="1"', "x\\=1", "a b", "x in (a b)"),
    ],
)
def test_a_label_selector_that_is_none_is_refused(api: Partner, selector: str) -> None:
    """kube-apiserver 1.36 refuses the same; kubectl does not even send them."""
    code, _, answer = api.ask("GET", f"{CONFIG_MAPS}?labelSelector={quote(selector)}")
    assert code == 400
    assert answer["message"].startswith("unable to parse requirement: ")
