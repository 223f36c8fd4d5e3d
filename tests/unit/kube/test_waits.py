# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a wait waits for. Statuses and messages are those of Kubernetes 1.36."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.kube import waits


def pod(phase: str, *, containers: list[dict[str, Any]] | None = None, conditions: list[dict[str, Any]] | None = None, deleting: bool = False) -> dict[str, Any]:
    metadata = {"name": "p", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {})}
    return {"kind": "Pod", "metadata": metadata, "status": {"phase": phase, "containerStatuses": containers or [], "conditions": conditions or []}}


def waiting(reason: str, message: str = "", *, restarts: int = 0, last: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "ray", "restartCount": restarts, "state": {"waiting": {"reason": reason, "message": message}}}
    if last is not None:
        found["lastState"] = {"terminated": {"exitCode": last}}
    return found


RUNNING = {"name": "ray", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
NO_GPU = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)."


@pytest.mark.parametrize(
    ("live", "done", "failed", "text"),
    [
        pytest.param(pod("Running", containers=[RUNNING]), True, False, "running", id="running"),
        pytest.param(pod("Running", containers=[RUNNING], deleting=True), False, False, "is being deleted", id="deleting"),
        pytest.param(pod("Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}]),
                     False, False, f"not scheduled: {NO_GPU}", id="unschedulable"),
        pytest.param(pod("Pending", containers=[waiting("ContainerCreating")]), False, False, "ContainerCreating", id="creating"),
        pytest.param(pod("Pending", containers=[waiting("ImagePullBackOff", "no match for platform")]), False, False,
                     "ImagePullBackOff: no match for platform", id="pull"),
        pytest.param(pod("Pending", containers=[waiting("CreateContainerError", "mkdir /srv: read-only file system")]), False, True,
                     "CreateContainerError: mkdir /srv: read-only file system", id="create"),
        pytest.param(pod("Running", containers=[waiting("CrashLoopBackOff", restarts=3, last=1)]), False, False,
                     "CrashLoopBackOff: ended with exit code 1 (3 restarts)", id="loop"),
        pytest.param(pod("Failed", containers=[{"name": "cuda", "state": {"terminated": {"exitCode": 1, "message": "cuInit returned 3\n"}}}]),
                     False, True, "failed: container cuda ended with exit code 1: cuInit returned 3", id="failed"),
        pytest.param(pod("Pending"), False, False, "pending", id="pending"),
    ],
)  # fmt: skip
def test_pods(live: dict[str, Any], done: bool, failed: bool, text: str) -> None:
    assert waits.pod_state(live) == waits.Progress(done, text, failed)


def test_ready_is_more_than_running() -> None:
    assert waits.predicate("Pod")(pod("Running", containers=[RUNNING])).text == "running, not ready"
    assert waits.predicate("Pod")(pod("Running", containers=[RUNNING], conditions=[{"type": "Ready", "status": "True"}])).done
    assert waits.predicate("Pod", "running")(pod("Running", containers=[RUNNING])).done


def daemonset(desired: int, ready: int, *, updated: int | None = None, generation: int = 1, observed: int = 1) -> dict[str, Any]:
    status = {"desiredNumberScheduled": desired, "numberReady": ready, "updatedNumberScheduled": ready if updated is None else updated}
    return {"metadata": {"generation": generation}, "status": {**status, "observedGeneration": observed}}


@pytest.mark.parametrize(
    ("live", "done"),
    [
        (daemonset(2, 2), True),
        (daemonset(2, 1), False),
        (daemonset(0, 0), False),
        (daemonset(2, 2, updated=1), False),
        (daemonset(2, 2, generation=2), False),
    ],
)
def test_daemonsets(live: dict[str, Any], done: bool) -> None:
    assert waits.predicate("DaemonSet")(live).done is done


@pytest.mark.parametrize(
    ("conditions", "done", "failed"),
    [
        ([{"type": "SuccessCriteriaMet", "status": "True"}], False, False),
        ([{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}], True, False),
        ([{"type": "Failed", "status": "True", "message": "backoff limit"}], False, True),
        ([], False, False),
    ],
)
def test_jobs(conditions: list[dict[str, Any]], done: bool, failed: bool) -> None:
    seen = waits.predicate("Job")({"status": {"conditions": conditions}})
    assert (seen.done, seen.failed) == (done, failed)


def test_other_kinds() -> None:
    assert waits.predicate("ConfigMap")({"kind": "ConfigMap"}).done
    assert not waits.predicate("ConfigMap")({}).done
    assert waits.predicate("Node")({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}).done
    assert not waits.predicate("Node")({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}).done
    assert not waits.predicate("Namespace")({"status": {"phase": "Terminating"}}).done


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ('pods "ray-head" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)', "pod-security"),
        ('pod rejected: RuntimeClass "nvidia" not found', "gpu_device_plugin"),
        ('Failed to create pod sandbox: rpc error: runtimeclass.node.k8s.io "nvidia" not found', "gpu_device_plugin"),
        ('failed to get sandbox runtime: no runtime for "nvidia" is configured', "talos_image"),
        (NO_GPU, "fewer free GPUs"),
        ('failed to mkdir "/srv/hf-cache": mkdir /srv: read-only file system', "/var"),
        ("failed to pull and unpack image: no match for platform in manifest: not found", "container_image"),
        ("exec /bin/bash: exec format error", "another architecture"),
        ("0/2 nodes are available: 1 node(s) didn't have free ports for the requested pod ports", "ports"),
    ],
)
def test_remedies(message: str, word: str) -> None:
    assert word in waits.remedy(message)


def test_an_unknown_message_has_no_remedy() -> None:
    assert waits.remedy("all is well") == ""


def test_the_newest_warning_counts() -> None:
    def event(name: str, message: str, time: str, kind: str = "Warning") -> dict[str, Any]:
        return {"type": kind, "reason": "R", "message": message, "lastTimestamp": time, "involvedObject": {"name": name}}

    events = [event("ray-head", "new", "2026-02-02"), event("ray-head", "old", "2026-01-01"), event("ray-head", "fine", "2026-03-03", "Normal"),
              event("other", "else", "2026-04-04")]
    assert waits.reason_of_events(events, "ray-head") == "R: new"
    assert waits.reason_of_events(events, "nobody") == ""
