# SPDX-License-Identifier: Apache-2.0
"""Models of GPUs whose MIG devices are alike."""

import os
from collections.abc import Iterable
from dataclasses import replace

from dra_driver.gpu.simulated.board import BoardModel


def one_of_each_geometry(models: Iterable[BoardModel]) -> list[BoardModel]:
    """The first of the models that have the same profiles at the same places with the same engines.

    Which MIG devices exclude each other is the same for all of them, whatever their names and memory are. With
    EVERY_EXAMPLE=1, all models.
    """
    if os.environ.get("EVERY_EXAMPLE"):
        return list(models)
    return list({_geometry(model): model for model in reversed(list(models))}.values())[::-1]


def _geometry(model: BoardModel) -> tuple[object, ...]:
    profiles = ((replace(one.info, name="", memory_mib=0, multiprocessors=0), one.placements) for one in model.profiles)
    return (model.memory_slices, *profiles)
