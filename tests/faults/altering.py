# SPDX-License-Identifier: Apache-2.0
"""A server that alters the slices it is sent, as a disturbance of a node's life: mutating webhooks come and go."""

import random
from collections.abc import Callable
from typing import Any

from dra_driver.sandbox.apiserver import status
from tests.support.faultyserver import Alteration, FaultyServer

JSON = dict[str, Any]

Change = Callable[[JSON, random.Random], None]


def _add_attribute(value: JSON, chance: random.Random) -> None:
    for device in value["spec"].get("devices") or ():
        device["attributes"]["example.com/webhook"] = {"int": chance.randrange(1000)}


def _remove_attribute(value: JSON, chance: random.Random) -> None:
    for device in value["spec"].get("devices") or ():
        device["attributes"].pop("uuid", None)


def _remove_device(value: JSON, chance: random.Random) -> None:
    value["spec"]["devices"] = (value["spec"].get("devices") or [])[1:]


def _remove_taints(value: JSON, chance: random.Random) -> None:
    for device in value["spec"].get("devices") or ():
        device.pop("taints", None)


def _change_generation(value: JSON, chance: random.Random) -> None:
    value["spec"]["pool"]["generation"] += chance.randint(1, 3)


def _remove_owner(value: JSON, chance: random.Random) -> None:
    value["metadata"].pop("ownerReferences", None)


def _refuse(value: JSON, chance: random.Random) -> None:
    raise status.RequestError(chance.choice((400, 403, 422, 500)), "", "a webhook denied the request")


CHANGES: tuple[Change, ...] = (
    _add_attribute,
    _remove_attribute,
    _remove_device,
    _remove_taints,
    _change_generation,
    _remove_owner,
    _refuse,
)


class AlteringServer:
    """Puts webhooks in force, each for some of the slices. `hits` is how many writes they altered or refused."""

    def __init__(self, server: FaultyServer, chance: random.Random) -> None:
        self._server = server
        self._chance = chance
        self._alterations: list[Alteration] = []

    @property
    def hits(self) -> int:
        """How many writes were altered or refused, of all that the webhooks saw."""
        return sum(one.hits for one in self._alterations)

    def begin(self, names: list[str]) -> str:
        """One more webhook, for one of the slices of these names. Says what it does."""
        name, change = self._chance.choice(names), self._chance.choice(CHANGES)
        alteration = Alteration("resourceslices", lambda value: change(value, self._chance), name=name)
        self._alterations.append(self._server.faults.alter(alteration))
        return f"{change.__name__.strip('_')} of {name}"

    def end(self) -> None:
        """No webhook any more."""
        for one in self._alterations:
            self._server.faults.restore(one)
        self._alterations.clear()
