# SPDX-License-Identifier: Apache-2.0
"""The flags that tell a process what is wanted of its GPUs."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dra_driver.gpu.options import PolicyOptions, policy_options
from dra_driver.gpu.policy import HealthPolicy, NodePolicy
from dra_driver.process.command import InputError


def run(*arguments: str | Path, **environment: str) -> PolicyOptions:
    """The options that a command with these flags is given."""
    given: list[PolicyOptions] = []

    @click.command()
    @policy_options
    def command(policy: PolicyOptions) -> None:
        given.append(policy)

    words = [str(argument) for argument in arguments]
    CliRunner().invoke(command, words, env=environment, catch_exceptions=False, standalone_mode=False)
    (options,) = given
    return options


def test_without_flags_nothing_special_is_wanted() -> None:
    assert run().on_node("node-a")() == NodePolicy()


def test_xids_of_the_flag_are_ignored_beside_those_of_the_file_whatever_becomes_of_it(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("health: {applicationXIDs: [137]}")
    options = run("--policy-file", file, ADDITIONAL_XIDS_TO_IGNORE="13, 45,")
    current = options.on_node("node-a")
    assert current().health.application_xids == {13, 45, 137}
    file.write_text("health: {applicationXIDs: [9], quietAfterSeconds: 1}")
    assert current().health == HealthPolicy(application_xids=frozenset({9, 13, 45}), quiet_after=1.0)


def test_the_policy_is_that_of_the_node(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("gpus: [{match: {nodes: [node-a]}, health: false}]")
    options = run("--policy-file", file)
    assert [len(options.on_node(name)().rules) for name in ("node-a", "node-b")] == [1, 0]


def test_a_file_that_is_of_no_use_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml cannot be read"):
        run("--policy-file", tmp_path / "none.yaml").on_node("node-a")


@pytest.mark.parametrize("text", ["13;45", "-1", "XID 13"])
def test_text_without_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="must be numbers, separated by commas"):
        run("--additional-xids-to-ignore", text)
