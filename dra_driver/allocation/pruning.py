# SPDX-License-Identifier: Apache-2.0
"""What a search need not try, because it cannot change the answer.

Everything here is exact: it leaves out attempts that provably fail. Where an attempt in vain could end
in an error, or leave something behind that later attempts meet, nothing is left out.
"""

from collections.abc import Hashable, Iterator

from .candidates import Problem
from .constraints import MatchAttribute
from .counters import Charge
from .features import Features
from .option import Option


def is_hopeless(problem: Problem) -> bool:
    """Whether some request has too few devices even if nothing else were picked.

    What is picked, and what it leaves behind, only ever takes devices away.
    """
    options = _options(problem)
    if any(option.errors or (option.wants_all and option.constraints) for option in options):
        return False
    if not _only_takes(problem.charges):
        return False
    alone = [charge is None or charge.fits_alone() for charge in problem.charges]
    return any(
        all(_lacks_devices(option, alone) for option in options) for requests in problem.claims for options in requests
    )


def _lacks_devices(option: Option, alone: list[bool]) -> bool:
    if option.wants_all and not option.devices:
        return True
    serving = sum(
        (alone[device] or device in option.shares)
        and device not in option.tainted
        and device not in option.barred
        and all(bound.facts[device] is not None for bound in option.constraints)
        for device in option.devices
    )
    return serving < option.count


def twins(problem: Problem, features: Features) -> list[int] | None:
    """For each device a number that it shares with devices it can be exchanged with; None if that proves nothing.

    If a device led nowhere at some place, so does its twin there: exchange the two in a solution with the twin,
    and it is one with the device, which would have been found. That takes demands which every part of a
    solution meets, too, and a search that is left as it was.
    """
    options = _options(problem)
    if not _leaves_nothing(problem, options, features):
        return None
    members = [(frozenset(option.devices), option) for option in options]
    numbers: dict[Hashable, int] = {}
    return [
        numbers.setdefault(tuple(_traits(device, problem, members)), len(numbers))
        for device in range(len(problem.charges))
    ]


def _leaves_nothing(problem: Problem, options: list[Option], features: Features) -> bool:
    if features.list_constraints or any(option.errors or option.tainted or option.shares for option in options):
        return False
    constraints = [bound.constraint for option in options for bound in option.constraints]
    if not all(isinstance(constraint, MatchAttribute) for constraint in constraints):
        return False
    if any(option.wants_all and option.constraints for option in options):
        return False
    keeps_counters = features.quirks.refused_keep_counters and any(problem.charges)
    return not (constraints and keeps_counters) and _only_takes(problem.charges)


def _traits(device: int, problem: Problem, members: list[tuple[frozenset[int], Option]]) -> Iterator[Hashable]:
    charge = problem.charges[device]
    yield None if charge is None else (id(charge.ledger), charge.items)
    for devices, option in members:
        yield device in devices, device in option.barred
        if device in devices:
            yield from (bound.facts[device] for bound in option.constraints)


def _options(problem: Problem) -> list[Option]:
    return [option for requests in problem.claims for options in requests for option in options]


def _only_takes(charges: list[Charge | None]) -> bool:
    """Whether no device adds to a counter, and no pool's totals stand in for another's."""
    known = [charge for charge in charges if charge is not None]
    pools = {(id(charge.ledger), id(charge.totals)) for charge in known}
    return len(pools) == len({ledger for ledger, _ in pools}) and all(
        amount >= 0 for charge in known for _, amount in charge.items
    )
