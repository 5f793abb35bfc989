# SPDX-License-Identifier: Apache-2.0
"""The examples for virtual machines keep KubeVirt's rules for claims (pkg/dra/admitter of KubeVirt after 1.9.0)."""

from typing import Any

import pytest
import yaml

from kubeletplugin.kinds.vfio.kubevirt import variable

from .commands import ROOT, blocks

JSON = dict[str, Any]

PAGE = (ROOT / "docs/how-to/virtual-machines.md").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "examples").glob("kubevirt*.yaml"))


def objects(text: str, kind: str) -> list[JSON]:
    """The objects of a kind in a stream of YAML."""
    return [one for one in yaml.safe_load_all(text) if one and one.get("kind") == kind]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_machine_names_its_gpus_by_claims_or_by_permitted_resources(example: Any) -> None:
    text = example.read_text(encoding="utf-8")
    (machine,) = objects(text, "VirtualMachineInstance")
    gpus = machine["spec"]["domain"]["devices"]["gpus"]
    claims = {one["name"]: one.get("resourceClaimTemplateName") for one in machine["spec"].get("resourceClaims", ())}
    by_claim = [one for one in gpus if "claimName" in one]
    assert len({(one["claimName"], one["requestName"]) for one in by_claim}) == len(by_claim)
    assert not (by_claim and len(by_claim) != len(gpus)), "no machine has both"
    requests = {
        template["metadata"]["name"]: {
            one["name"]: one["exactly"].get("count", 1) for one in template["spec"]["spec"]["devices"]["requests"]
        }
        for template in objects(text, "ResourceClaimTemplate")
    }
    assert all(requests[claims[one["claimName"]]][one["requestName"]] == 1 for one in by_claim)
    permitted = {
        one["resourceName"]
        for kubevirt in objects(text, "KubeVirt")
        for one in kubevirt["spec"]["configuration"]["permittedHostDevices"]["pciHostDevices"]
        if one["externalResourceProvider"]
    }
    assert {one["deviceName"] for one in gpus if "deviceName" in one} == permitted


def test_the_class_of_the_page_serves_the_resource_of_the_example() -> None:
    (served,) = {
        one["spec"]["extendedResourceName"]
        for _, _, content in blocks(PAGE)
        for one in (objects(content, "DeviceClass") if "extendedResourceName" in content else ())
    }
    (kubevirt,) = objects((ROOT / "examples/kubevirt-extended-resource.yaml").read_text(encoding="utf-8"), "KubeVirt")
    (permitted,) = kubevirt["spec"]["configuration"]["permittedHostDevices"]["pciHostDevices"]
    assert served == permitted["resourceName"]
    assert variable(served) == "PCI_RESOURCE_NVIDIA_COM_GH100_H100_SXM5_80GB"
