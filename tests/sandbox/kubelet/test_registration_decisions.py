# SPDX-License-Identifier: Apache-2.0
"""What kubelet decides about plugins, without sockets."""

from collections.abc import Sequence

import pytest

from dra_driver.sandbox.kubelet.plugin import (
    Registration,
    RegistrationError,
    decide,
)
from dra_driver.sandbox.kubelet.wire import PluginInfo

V1, V1BETA1, UNKNOWN = "v1.DRAPlugin", "v1beta1.DRAPlugin", "v9.DRAPlugin"
HEALTH_V1, HEALTH_V1ALPHA1 = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"


def decided(*advertised: str, known: Sequence[str] = (V1, V1BETA1)) -> Registration:
    return decide(PluginInfo("DRAPlugin", "driver", "/e", advertised), "/reg.sock", known, [HEALTH_V1, HEALTH_V1ALPHA1])


@pytest.mark.parametrize(
    ("advertised", "known", "chosen"),
    [
        ([V1, V1BETA1], [V1, V1BETA1], V1),
        ([V1BETA1, V1], [V1, V1BETA1], V1BETA1),  # the plugin's order counts
        ([UNKNOWN, HEALTH_V1, V1BETA1], [V1, V1BETA1], V1BETA1),
        ([V1, V1BETA1], [V1BETA1], V1BETA1),  # a kubelet of 1.32 or 1.33
    ],
)
def test_the_first_advertised_service_that_kubelet_knows_is_chosen(
    advertised: list[str], known: list[str], chosen: str
) -> None:
    assert decided(*advertised, known=known).service == chosen


@pytest.mark.parametrize(
    ("advertised", "error"),
    [
        ([], "empty list of supported gRPC services (aka supported versions)"),
        (
            [UNKNOWN],
            'none of services supported by the plugin (["v9.DRAPlugin"]) are supported by the kubelet '
            '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])',
        ),
    ],
)
def test_without_a_known_service_there_is_no_registration(advertised: list[str], error: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        decided(*advertised)
    assert str(caught.value).endswith(f" of DRA driver plugin driver at endpoint /e: {error}")


@pytest.mark.parametrize(
    ("advertised", "chosen"),
    [
        ([V1], None),
        ([V1, HEALTH_V1ALPHA1], HEALTH_V1ALPHA1),
        ([V1, HEALTH_V1ALPHA1, HEALTH_V1], HEALTH_V1),  # whatever the plugin's order
    ],
)
def test_the_newest_health_service_is_preferred_and_none_is_fine(advertised: list[str], chosen: str | None) -> None:
    assert decided(*advertised).health_service == chosen


@pytest.mark.parametrize(("endpoint", "registered"), [("/plugins/dra.sock", "/plugins/dra.sock"), ("", "/reg.sock")])
def test_an_empty_endpoint_means_the_registration_socket(endpoint: str, registered: str) -> None:
    info = PluginInfo("DRAPlugin", "driver", endpoint, (V1, HEALTH_V1))
    assert decide(info, "/reg.sock", [V1], [HEALTH_V1]) == Registration("driver", registered, V1, HEALTH_V1)
