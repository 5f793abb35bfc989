# SPDX-License-Identifier: Apache-2.0
"""The DeviceClasses of the sandbox: those of the Helm chart, read from the chart's own file."""

from importlib import resources
from pathlib import Path

import yaml

from ..resource.codec import V1
from .loop import JSON

RELEASE = "dra-driver-gpu"
"""Name and namespace of the Helm release that may take the classes over: those of `helm install` in the README."""

_CHECKOUT = Path(__file__).parents[2] / "charts/dra-driver-gpu/files/deviceclasses.yaml"


def device_classes() -> list[JSON]:
    """The classes as API objects. They look like those of `RELEASE`, so that installing the chart adopts them."""
    packaged = Path(str(resources.files("dra_driver.sandbox") / "deviceclasses.yaml"))
    text = (_CHECKOUT if _CHECKOUT.is_file() else packaged).read_text(encoding="utf-8")
    return [
        {
            "apiVersion": V1.api_version,
            "kind": "DeviceClass",
            "metadata": {
                "name": one["name"],
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
                "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": RELEASE},
            },
            "spec": {"selectors": [{"cel": {"expression": one["expression"]}}]},
        }
        for one in yaml.safe_load(text)
    ]
