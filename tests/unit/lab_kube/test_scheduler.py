# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where Pods go, and the words when they do not."""

from __future__ import annotations

from typing import Any

import pytest
from motley_lab.kube.scheduler import decide

Json = dict[str, Any]
CONTROL: Json = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
TOLERATION: Json = {"key": CONTROL["key"], "operator": "Exists", "effect": "NoSchedule"}
HELPLESS = "Preemption is not helpful for scheduling"
VICTIMS = "No preemption victims found for incoming pod"


def _node(name: str, arch: str, *, gpus: int = 0, **spec: Any) -> Json:
    have = {"cpu": "16", "memory": "64Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {"metadata": {"name": name, "labels": {"kubernetes.io/arch": arch, "kubernetes.io/hostname": name}}, "spec": spec,
            "status": {"allocatable": have}}


def _pod(name: str = "p", *, gpus: int = 0, port: int = 0, on: str = "", labels: dict[str, str] | None = None, **spec: Any) -> Json:
    container: Json = {"name": "c", "resources": {"requests": {"nvidia.com/gpu": str(gpus)} if gpus else {}}}
    if port:
        container["ports"] = [{"containerPort": port, "hostPort": port, "protocol": "TCP"}]
    spec.setdefault("containers", [container])
    return {"metadata": {"name": name, "namespace": "n", "labels": labels or {}}, "spec": {**spec, **({"nodeName": on} if on else {})}}


NODES = {"x86-01": _node("x86-01", "amd64", gpus=2, taints=[CONTROL]), "spark-01": _node("spark-01", "arm64")}
APART: Json = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"labelSelector": {"matchLabels": {"app": "ray"}}, "topologyKey": "kubernetes.io/hostname"}]}}


def _named(node: str) -> Json:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(("pod", "there", "node"), [
    (_pod(), [], "spark-01"),
    (_pod(gpus=2, tolerations=[TOLERATION]), [], "x86-01"),
    (_pod(gpus=1, tolerations=[{"operator": "Exists"}]), [_pod("q", gpus=1, on="x86-01")], "x86-01"),
    (_pod(tolerations=[{"operator": "Exists"}]), [_pod("q", on="spark-01")], "x86-01"),
    (_pod(affinity=_named("x86-01"), tolerations=[TOLERATION]), [], "x86-01"),
    (_pod(port=80, tolerations=[TOLERATION]), [_pod("q", port=80, on="spark-01")], "x86-01"),
    (_pod(labels={"app": "ray"}, affinity=APART, tolerations=[TOLERATION]), [_pod("q", labels={"app": "ray"}, on="spark-01")], "x86-01"),
])
def test_a_pod_is_placed(pod: Json, there: list[Json], node: str) -> None:
    assert decide(pod, NODES, there, {}) == (node, "")


@pytest.mark.parametrize(("pod", "there", "reasons", "helped"), [
    (_pod(nodeSelector={"kubernetes.io/arch": "amd64"}), [],
     "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s)", f"2 {HELPLESS}"),
    (_pod(gpus=1), [], "1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)", f"2 {HELPLESS}"),
    (_pod(gpus=1, tolerations=[TOLERATION], nodeSelector={"kubernetes.io/arch": "amd64"}), [_pod("q", gpus=2, on="x86-01")],
     "1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector", f"1 {VICTIMS}, 1 {HELPLESS}"),
    (_pod(gpus=3, tolerations=[TOLERATION]), [], "2 Insufficient nvidia.com/gpu", f"2 {HELPLESS}"),
    (_pod(port=6379), [_pod("q", port=6379, on="spark-01")],
     "1 node(s) didn't have free ports for the requested pod ports, 1 node(s) had untolerated taint(s)", f"1 {VICTIMS}, 1 {HELPLESS}"),
    (_pod(affinity=APART), [_pod("q", labels={"app": "ray"}, on="spark-01")],
     "1 node(s) didn't match pod anti-affinity rules, 1 node(s) had untolerated taint(s)", f"1 {VICTIMS}, 1 {HELPLESS}"),
    (_pod(labels={"app": "ray"}), [_pod("q", affinity=APART, on="spark-01")],
     "1 node(s) didn't satisfy existing pods anti-affinity rules, 1 node(s) had untolerated taint(s)", f"1 {VICTIMS}, 1 {HELPLESS}"),
])
def test_why_a_pod_waits(pod: Json, there: list[Json], reasons: str, helped: str) -> None:
    head = "0/2 nodes are available"
    assert decide(pod, NODES, there, {}) == ("", f"{head}: {reasons}. no new claims to deallocate, preemption: {head}: {helped}.")


def test_a_cordoned_node_and_no_node() -> None:
    nodes = {"spark-01": _node("spark-01", "arm64", unschedulable=True)}
    assert "1 node(s) were unschedulable" in decide(_pod(), nodes, [], {})[1]
    assert decide(_pod(), {}, [], {}) == ("", "no nodes available to schedule pods")


def test_claims_come_first() -> None:
    pod = _pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "hf"}}])
    assert decide(pod, NODES, [], {})[1] == '0/2 nodes are available: persistentvolumeclaim "hf" not found. not found'
    assert decide(pod, NODES, [], {"hf": {"spec": {}}})[1] == "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
    assert decide(pod, NODES, [], {"hf": {"spec": {"volumeName": "pv"}}})[0] == "spark-01"
