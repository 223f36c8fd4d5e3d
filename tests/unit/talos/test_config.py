# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import config, patches, releases, yaml_text

OLD, NEW = releases.contract("v1.13.9"), releases.contract("v1.14.1")


def _node(**changes: Any) -> config.NodeConfig:
    values: dict[str, Any] = {
        "name": "x86-01", "role": "controlplane", "address": "10.0.0.20", "install_disk": "/dev/nvme0n1", "installer": "f/metal-installer/abc:v1.14.1",
        "talos_version": "v1.14.1", "kubernetes_version": "1.36.1", "gpu": True,
    }  # fmt: skip
    return config.NodeConfig(**{**values, **changes})


CONTROL_PLANE_OLD = """\
machine:
    kubelet:
        nodeIP:
            validSubnets:
                - 10.0.0.20/32
    kernel:
        modules:
            - name: nvidia
            - name: nvidia_uvm
            - name: nvidia_drm
            - name: nvidia_modeset
cluster:
    allowSchedulingOnControlPlanes: true
    etcd:
        advertisedSubnets:
            - 10.0.0.20/32
---
apiVersion: v1alpha1
kind: HostnameConfig
hostname: x86-01
auto: 'off'
"""
CONTROL_PLANE_NEW = """\
cluster:
    etcd:
        advertisedSubnets:
            - 10.0.0.20/32
---
apiVersion: v1alpha1
kind: KubeNodeConfig
nodeIP:
    validSubnets:
        - 10.0.0.20/32
taints:
    node-role.kubernetes.io/control-plane:
        $patch: delete
---
apiVersion: v1alpha1
kind: KernelModuleConfig
name: nvidia
---
apiVersion: v1alpha1
kind: KernelModuleConfig
name: nvidia_uvm
---
apiVersion: v1alpha1
kind: KernelModuleConfig
name: nvidia_drm
---
apiVersion: v1alpha1
kind: KernelModuleConfig
name: nvidia_modeset
---
apiVersion: v1alpha1
kind: HostnameConfig
hostname: x86-01
auto: 'off'
"""
WORKER_NEW = """\
apiVersion: v1alpha1
kind: KubeNodeConfig
nodeIP:
    validSubnets:
        - 10.0.0.10/32
---
apiVersion: v1alpha1
kind: UnattendedInstallConfig
provisioning:
    wipe: true
---
apiVersion: v1alpha1
kind: HostnameConfig
hostname: spark-01
auto: 'off'
---
apiVersion: v1alpha1
kind: LinkConfig
name: enP7s7
up: true
addresses:
    - address: 10.0.0.10/24
routes:
    - gateway: 10.0.0.1
---
apiVersion: v1alpha1
kind: ResolverConfig
nameservers:
    - address: 10.0.0.1
---
apiVersion: v1alpha1
kind: TimeSyncConfig
ntp:
    servers:
        - pool.ntp.org
---
apiVersion: v1alpha1
kind: RegistryMirrorConfig
name: 10.0.0.1:8080
endpoints:
    - url: http://10.0.0.1:8080
---
apiVersion: v1alpha1
kind: RegistryMirrorConfig
name: nvcr.io
endpoints:
    - url: http://10.0.0.1:8080
"""


@pytest.mark.parametrize(
    ("node", "contract", "expected"),
    [
        (_node(), OLD, CONTROL_PLANE_OLD),
        (_node(), NEW, CONTROL_PLANE_NEW),
        (
            _node(
                name="spark-01",
                role="worker",
                address="10.0.0.10",
                gpu=False,
                install_wipe=True,
                static_address="10.0.0.10/24",
                interface="enP7s7",
                gateway="10.0.0.1",
                nameservers=("10.0.0.1",),
                timeservers=("pool.ntp.org",),
                registry_mirrors={"nvcr.io": "http://10.0.0.1:8080"},
            ),
            NEW,
            WORKER_NEW,
        ),
    ],
    ids=["control plane 1.13", "control plane 1.14", "worker 1.14 with everything"],
)
def test_documents(node: config.NodeConfig, contract: releases.Contract, expected: str) -> None:
    assert yaml_text.dump_all(config.documents(node, contract)) == expected


def test_the_word_off_survives_a_yaml_1_1_reader() -> None:
    text = yaml_text.dump_all(config.documents(_node(), OLD))
    assert [doc for doc in yaml.safe_load_all(text) if doc.get("kind") == "HostnameConfig"][0]["auto"] == "off"


def test_wipe_of_the_older_contract() -> None:
    assert config.documents(_node(install_wipe=True), OLD)[0]["machine"]["install"] == {"wipe": True}
    assert "install" not in config.documents(_node(), OLD)[0]["machine"]


def test_the_bpf_setting_is_for_1_12_only() -> None:
    old = config.documents(_node(talos_version="v1.12.11"), releases.contract("v1.12.11"))[0]["machine"]
    assert old["sysctls"] == {"net.core.bpf_jit_harden": "1"}
    assert "sysctls" not in config.documents(_node(talos_version="v1.13.9"), OLD)[0]["machine"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "X_1"}, "node name"),
        ({"name": "a" * 64}, "node name"),
        ({"address": "spark.local"}, "no IP address"),
        ({"nameservers": ("dns.example",)}, "motley_nameservers"),
        ({"install_disk": "nvme0n1"}, "motley_install_disk"),
        ({"install_disk": ""}, "motley_install_disk is not set"),
        ({"static_address": "10.0.0.20/24"}, "network interface"),
        ({"static_address": "10.0.0.20", "interface": "enp3s0"}, "prefix length"),
        ({"static_address": "10.0.0.20/240", "interface": "enp3s0"}, "prefix length"),
        ({"registry_mirrors": {"nvcr.io": "10.0.0.1:5000"}}, "no HTTP address"),
    ],
)
def test_what_talos_would_take_and_should_not(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MotleyError, match=words):
        config.documents(_node(**changes), NEW)


def test_a_plain_http_factory_is_a_registry_that_containerd_has_to_know() -> None:
    assert config.with_factory({}, "http://10.0.0.1:8080") == {"10.0.0.1:8080": "http://10.0.0.1:8080"}
    assert config.with_factory({"a": "b"}, "https://factory.talos.dev") == {"a": "b"}


def test_generate_arguments() -> None:
    arguments = config.generate(
        _node(), NEW, cluster="home", endpoint="https://10.0.0.20:6443", secrets="/s/secrets.yaml", patches=["/w/0"], output="/w/c"
    )
    assert arguments[:4] == ["gen", "config", "home", "https://10.0.0.20:6443"]
    assert arguments[arguments.index("--output-types") + 1] == "controlplane"
    assert arguments[arguments.index("--talos-version") + 1] == "v1.14"
    assert arguments[-2:] == ["--config-patch", "@/w/0"]
    assert config.generate(_node(role="worker"), OLD, cluster="h", endpoint="e", secrets="s", patches=[], output="o").count("worker") == 1


@pytest.mark.parametrize(
    ("text", "changed", "reboot"),
    [
        ("Dry run summary:\nApplied configuration without a reboot (skipped in dry-run).\nConfig diff:\n\nNo changes.\n", False, False),
        (
            "WARNING: x\nDry run summary:\nApplied configuration with a reboot (skipped in dry-run).\nConfig diff:\n\nNo changes.\n",
            False,
            True,
        ),
        (
            "Dry run summary:\nApplied configuration without a reboot (skipped in dry-run).\nConfig diff:\n\n--- a\n+++ b\n+x: No changes.\n\n",
            True,
            False,
        ),
        (
            "Dry run summary:\nApplied configuration with a reboot: y (skipped in dry-run).\nConfig diff:\n\n--- a\n+++ b\n+x: 1\n",
            True,
            True,
        ),
    ],
)
def test_dry_run(text: str, changed: bool, reboot: bool) -> None:
    found = config.dry_run(text)
    assert (found.changed, found.reboot) == (changed, reboot)


def test_a_dry_run_without_summary_is_no_answer() -> None:
    with pytest.raises(MotleyError):
        config.dry_run("Applied configuration without a reboot\n")


@pytest.mark.parametrize(
    ("document", "contract", "words"),
    [
        ({"machine": {"kernel": {"args": ["arm64.nobti"]}}}, OLD, "motley_talos_image_kernel_args"),
        ({"machine": {"kernel": {"args": []}}}, NEW, "motley_talos_image_kernel_args"),
        ({"machine": {"install": {"extraKernelArgs": ["x"]}}}, OLD, "motley_talos_image_kernel_args"),
        ({"machine": {"install": {"extensions": [{"image": "x"}]}}}, OLD, "motley_talos_image_extensions"),
        ({"machine": {"install": {"image": "x"}}}, OLD, "motley_talos_version"),
        ({"machine": {"install": {"diskSelector": {}}}}, NEW, "UnattendedInstallConfig"),
        ({"machine": {"network": {"hostname": "x"}}}, OLD, "rename the host"),
        ({"machine": {"nodeLabels": {"a": "b"}}}, NEW, "KubeNodeConfig.labels"),
        ({"machine": {"kubelet": {"extraArgs": {}}}}, NEW, "KubeletConfig"),
        ({"cluster": {"allowSchedulingOnControlPlanes": True}}, NEW, "remove it"),
        ({"apiVersion": "v1alpha1", "kind": "KernelArgs", "args": []}, NEW, "motley_talos_image_kernel_args"),
        ({"apiVersion": "v1alpha1", "kind": "KernelModuleConfig", "name": "x"}, OLD, "comes with Talos 1.14"),
        ({"apiVersion": "v1alpha1", "kind": "HostnameConfig", "hostname": "x"}, NEW, "rename the host"),
        ({"apiVersion": "v1alpha1", "kind": "UnattendedInstallConfig", "provisioning": {"wipe": True}}, NEW, "motley_install_wipe"),
        ({"kind": "KubeNodeConfig"}, NEW, "apiVersion: v1alpha1"),
        ([{"op": "add", "path": "/machine", "value": 1}], NEW, "strategic merge"),
        ("machine", NEW, "mapping"),
    ],
)
def test_patches_that_cannot_work_are_refused_with_the_fix(document: Any, contract: releases.Contract, words: str) -> None:
    with pytest.raises(MotleyError) as caught:
        patches.check([document], contract)
    assert words in caught.value.hint


@pytest.mark.parametrize(
    ("document", "contract"),
    [
        ({"machine": {"sysctls": {"vm.nr_hugepages": "1"}}}, OLD),
        ({"machine": {"nodeLabels": {"a": "b"}}}, OLD),
        ({"machine": {"kubelet": {"extraMounts": []}}}, OLD),
        ({"apiVersion": "v1alpha1", "kind": "KubeNodeConfig", "labels": {"a": "b"}}, NEW),
        ({"apiVersion": "v1alpha1", "kind": "UserVolumeConfig", "name": "hf-cache"}, OLD),
    ],
)
def test_good_patches_pass(document: Any, contract: releases.Contract) -> None:
    assert patches.check([document], contract) == []


def test_modules_that_would_stand_there_twice_are_pointed_out() -> None:
    found = patches.check([{"machine": {"kernel": {"modules": [{"name": "nvidia"}, {"name": "rdma_cm"}]}}}], OLD)
    assert len(found) == 1
    assert "nvidia" in found[0]
    assert "rdma_cm" not in found[0]


def test_off_of_an_inventory_is_a_word_again() -> None:
    assert patches.unlearn_booleans({"kind": "HostnameConfig", "auto": False, "up": False, "l": [{"auto": True}]}) == {
        "kind": "HostnameConfig", "auto": "off", "up": False, "l": [{"auto": "on"}],
    }  # fmt: skip
