# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs in Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images import reference
from ansible_collections.motley.inference.plugins.module_utils.kube import gpu
from ansible_collections.motley.inference.plugins.plugin_utils import remote


@pytest.mark.parametrize("version", ["v0.17.4", "0.17.5", "v0.18.0", "v0.19.3", "v0.20.0"])
def test_good_releases(version: str) -> None:
    gpu.check_plugin(version, unified=["spark-01"])
    assert gpu.plugin_image(version).endswith(f":v{version.removeprefix('v')}")


@pytest.mark.parametrize("version", ["v0.17.0", "v0.17.3", "v0.16.2", "0.14.0"])
def test_releases_that_end_on_a_gb10_are_refused(version: str) -> None:
    with pytest.raises(MotleyError, match=rf"k8s-device-plugin {version} cannot register a GB10 \(spark-01\); use v0.17.4 or newer") as caught:
        gpu.check_plugin(version, unified=["spark-01"])
    assert "error getting device memory: Not Supported" in caught.value.evidence
    assert "FAIL_ON_INIT_ERROR does not help" in caught.value.hint


def test_no_version() -> None:
    with pytest.raises(MotleyError, match="no version"):
        gpu.check_plugin("latest", unified=[])


def test_the_default_is_good() -> None:
    gpu.check_plugin(gpu.PLUGIN_DEFAULT, unified=["spark-01"])


def test_device_plugin() -> None:
    made = gpu.device_plugin(reference.parse(gpu.plugin_image("v0.20.0")), ["x86-01", "spark-01"])
    spec = made["spec"]["template"]["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    assert {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["x86-01", "spark-01"]
    labels = made["spec"]["selector"]["matchLabels"]
    assert labels.items() <= made["spec"]["template"]["metadata"]["labels"].items()
    assert spec["volumes"][0]["hostPath"] == {"path": "/var/lib/kubelet/device-plugins", "type": "Directory"}


def test_cuda_job() -> None:
    image = reference.parse("vllm/vllm-openai:v0.17.1")
    job = gpu.cuda_job("spark-01", arch="arm64", image=image, gpus=1, script="pass", megabytes=16, namespace="motley")
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "spark-01", "kubernetes.io/arch": "arm64"}
    assert spec["containers"][0]["command"] == ["python3", "-c", "pass", "16"]
    assert spec["containers"][0]["resources"]["limits"] == spec["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert (spec["restartPolicy"], job["spec"]["backoffLimit"]) == ("Never", 0)


GOOD = {"ok": True, "count": 1, "devices": [{"name": "NVIDIA GB10"}], "driver": 13000, "error": None}


def test_result_in_a_log() -> None:
    assert gpu.cuda_result('noise\nMOTLEY_CUDA{"ok": true, "count": 1}\n') == {"ok": True, "count": 1}
    assert gpu.cuda_result("MOTLEY_CUDA{broken") is None
    assert gpu.cuda_result("Traceback") is None


def test_a_good_result_passes() -> None:
    gpu.check_cuda("spark-01", GOOD, planned=1)


@pytest.mark.parametrize(
    ("result", "planned", "message", "hint"),
    [
        ({"ok": False, "error": "cuInit returned 3"}, 1, "cuInit returned 3: the driver is there, but CUDA can not initialise", "v1.14.1"),
        ({"ok": False, "error": "cuInit returned 100"}, 1, "no CUDA device", "talos_image"),
        ({"ok": False, "error": "libcuda.so.1: cannot open shared object file"}, 1, "the driver's library is not in the container", "toolkit"),
        ({"ok": False, "error": "cuFoo returned 7"}, 1, "the CUDA call failed", "kernel log"),
        (GOOD, 2, "CUDA sees 1 devices, the inventory has 2", "motley_accelerators"),
        (None, 1, "printed no result", "kubectl logs"),
    ],
)
def test_bad_results(result: dict[str, Any] | None, planned: int, message: str, hint: str) -> None:
    with pytest.raises(MotleyError) as caught:
        gpu.check_cuda("spark-01", result, planned=planned)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.node == "spark-01"


def node(gpus: int | None) -> dict[str, Any]:
    return {"status": {"allocatable": {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus is not None else {})}}}


@pytest.mark.parametrize(
    ("nodes", "short"),
    [
        ({"x86-01": node(2), "spark-01": node(1)}, {}),
        ({"x86-01": node(1), "spark-01": node(None)}, {"x86-01": "offers 1 of 2 GPUs", "spark-01": "offers 0 of 1 GPUs"}),
        ({"x86-01": node(2)}, {"spark-01": "is no node of the cluster"}),
        ({"x86-01": node(4), "spark-01": node(1)}, {}),
    ],
)
def test_shortage(nodes: dict[str, Any], short: dict[str, str]) -> None:
    assert gpu.shortage(nodes, {"x86-01": 2, "spark-01": 1}) == short


@pytest.mark.parametrize(
    ("desired", "current", "ready", "word"),
    [(2, 2, 2, ""), (1, 1, 1, "wanted on 2 nodes and scheduled for 1"), (2, 0, 0, "has 0 of 2 Pods"), (2, 2, 1, "1 of 2 device plugins ready")],
)
def test_desired_is_compared_with_the_plan(desired: int, current: int, ready: int, word: str) -> None:
    status = {"desiredNumberScheduled": desired, "currentNumberScheduled": current, "numberReady": ready}
    problem = gpu.plugin_problem({"status": status}, ["x86-01", "spark-01"])
    assert word in problem if word else problem == ""


def test_plugin_logs() -> None:
    line = "E1029 main.go:179] error starting plugins: error building Device: error getting device memory: Not Supported"
    cause = gpu.plugin_log_cause(line)
    assert cause
    assert "v0.17.4" in cause[1]
    assert gpu.plugin_log_cause("If this is a GPU node, did you configure the NVIDIA Container Toolkit?")
    assert gpu.plugin_log_cause("Starting Plugins.") is None


def test_a_result_depends_on_image_boot_driver_and_cards() -> None:
    base: dict[str, Any] = {"image": "sha256:a", "boot_id": "b", "driver": "580", "gpus": 2}
    assert gpu.cuda_key(**base) == gpu.cuda_key(**base)
    for name, value in (("image", "sha256:c"), ("boot_id", "d"), ("driver", None), ("gpus", 1)):
        assert gpu.cuda_key(**{**base, name: value}) != gpu.cuda_key(**base)


@pytest.mark.parametrize("name", ["cuda_check", "ray_call", "node_probe"])
def test_scripts_travel_without_comments_and_still_compile(name: str) -> None:
    text = remote.source(name)
    compile(text, name, "exec")
    assert "#" not in text
    assert '"""' not in text
    assert len(text) < 2600
