# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather what is to be seen of a running service: Ray and devices through the Kubernetes API, the endpoint over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.diagnosis import probe, readings
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.serving import layout as places
from ansible_collections.motley.inference.plugins.module_utils.serving import requests
from ansible_collections.motley.inference.plugins.module_utils.serving.layout import Layout
from ansible_collections.motley.inference.plugins.module_utils.serving.ray import PREFIX
from ansible_collections.motley.inference.plugins.plugin_utils import openai
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Kube
from ansible_collections.motley.inference.plugins.plugin_utils.ray import RayApi

SAMPLE_PAUSE = 0.3
MOST_SECONDS = 45.0


def planned_nodes(layout: Layout) -> dict[str, dict[str, Any]]:
    """What the checks need of each node: address, interface, variables, the device indexes that its container sees."""
    return {
        m.name: {"address": m.address, "interface": m.interface, "env": dict(m.env),
                 "devices": [int(i) for i in m.visible.split(",")] if m.visible else list(range(m.limit))}
        for m in layout.members
    }


def pods(kube: Kube) -> dict[str, dict[str, Any]]:
    """Our Pods by name: phase, image as asked, image as run."""
    found = {}
    for item in kube.list_objects("v1", "Pod", namespace=places.NAMESPACE, labels=places.SELECTOR):
        status = item.get("status") or {}
        states = [s for s in status.get("containerStatuses") or [] if s.get("name") == places.CONTAINER] or [{}]
        spec = [c for c in item["spec"]["containers"] if c.get("name") == places.CONTAINER] or [{}]
        found[item["metadata"]["name"]] = {"phase": status.get("phase"), "image": spec[0].get("image"), "image_id": states[0].get("imageID"),
                                           "running": "running" in (states[0].get("state") or {})}
    return found


def ray(kube: Kube, layout: Layout) -> dict[str, Any]:
    """Evidence of the head's Ray: job, log, actors, nodes."""
    api = RayApi(kube)
    found = probe.evidence(api.calls(probe.first_calls()), prefix=f"{PREFIX}{layout.plan}-")
    if (found["job"] or {}).get("id"):
        status, body = api.calls([probe.log_call(found["job"]["id"])])[0]
        if status == 200 and isinstance(body, dict):
            found["log"] = str(body.get("logs") or "")
        else:
            found["errors"].append(f"log of the job answers {status}")
    return found


def endpoint(address: str, port: int, key: str | None, *, full: bool) -> dict[str, Any]:
    """Health, the answer without a key, the model's name, one real completion."""
    where = requests.endpoint(f"http://{address}:{port}")
    health = openai.fetch(where, "/health")
    found: dict[str, Any] = {"health": {"status": health.status, "problem": "" if health.status == 200 else health.problem}}
    if full:
        without = openai.fetch(where, "/v1/models")
        found["unauthorized"] = {"status": without.status, "problem": "" if without.status else without.text}
    models = openai.fetch(where, "/v1/models", key=key)
    model, _is_vllm = requests.served_model(models.json())
    found["model"] = model
    if not model:
        found["completion"] = {"ok": False, "problem": f"no model is served: {models.problem}"}
        return found
    since = time.perf_counter()
    body = requests.body("completions", model, "The capital of France is", output_tokens=16 if full else 8, stream=False)
    reply = openai.fetch(where, "/v1/completions", method="POST", document=body, key=key, timeout=120)
    found["completion"] = _completion(reply, time.perf_counter() - since)
    return found


def _completion(reply: openai.Reply, seconds: float) -> dict[str, Any]:
    document = reply.json() if reply.status == 200 else None
    tokens = ((document or {}).get("usage") or {}).get("completion_tokens") or 0
    if not document or not document.get("choices") or not tokens:
        return {"ok": False, "problem": reply.problem if reply.status != 200 else "the answer has no tokens", "output_tokens": 0}
    return {"ok": True, "text": str(document["choices"][0].get("text") or "")[:200], "output_tokens": tokens, "seconds": round(seconds, 3)}


@dataclass
class _Watch:
    """One node while the probe runs."""

    before: str = ""
    after: str = ""
    samples: list[str] = field(default_factory=list)
    problem: str = ""


def load(kube: Kube, layout: Layout, *, model: str, key: str | None, port: int, seconds: float) -> dict[str, Any]:
    """Make the service work for some seconds, and watch every node's devices and byte counters meanwhile."""
    watches = {m.name: _Watch() for m in layout.members}
    started, stop = threading.Barrier(len(watches) + 1), threading.Event()
    pool = ThreadPoolExecutor(len(watches))
    try:
        watchers = [pool.submit(_watch, kube.kubeconfig, layout.pod_of(name), watch, started, stop) for name, watch in watches.items()]
        _wait_for(started)
        tokens, errors = _work(layout, watches, model=model, key=key, port=port, seconds=seconds)
        stop.set()
        for watcher in watchers:
            watcher.result(timeout=60)
    finally:
        stop.set()
        started.abort()
        pool.shutdown(wait=False, cancel_futures=True)
    return {
        "tokens": tokens, "probe_errors": errors,
        "net": {name: {"before": w.before, "after": w.after} for name, w in watches.items() if w.before and w.after},
        "gpu_samples": {name: w.samples for name, w in watches.items()},
        "gpu_errors": {name: w.problem for name, w in watches.items() if w.problem},
    }


def _wait_for(barrier: threading.Barrier) -> None:
    try:
        barrier.wait(timeout=30)
    except threading.BrokenBarrierError as error:
        raise MotleyError("the nodes' containers could not be looked into", hint="see whether their Pods run, then run verify again") from error


def _watch(kubeconfig: Any, pod: str, watch: _Watch, started: threading.Barrier, stop: threading.Event) -> None:
    """Counters, then samples until told to stop, then counters again; one client a thread."""
    try:
        kube = Kube(kubeconfig)
        watch.before = _run(kube, pod, readings.NET_COMMAND, watch)
        started.wait(timeout=30)
        while not stop.is_set():
            text = _run(kube, pod, readings.SMI_COMMAND, watch)
            if text:
                watch.samples.append(text)
            stop.wait(SAMPLE_PAUSE)
        watch.after = _run(kube, pod, readings.NET_COMMAND, watch)
    except threading.BrokenBarrierError:
        return
    except MotleyError as error:
        watch.problem = error.message
        if watch.before == "":
            started.abort()


def _run(kube: Kube, pod: str, argv: tuple[str, ...], watch: _Watch) -> str:
    done = kube.exec(places.NAMESPACE, pod, list(argv), container=places.CONTAINER, timeout=20)
    if done.rc:
        watch.problem = f"{argv[0]}: {(done.stderr or done.stdout).strip()[:200]}"
        return ""
    return done.stdout


def _work(layout: Layout, watches: Mapping[str, _Watch], *, model: str, key: str | None, port: int, seconds: float) -> tuple[int, list[str]]:
    """Short requests, several at a time so that every stage has work, until each node was seen often enough."""
    where = requests.endpoint(f"http://{layout.head.address}:{port}")
    since, tokens, number = time.monotonic(), 0, 0
    errors: list[str] = []
    at_once = max(4, 2 * layout.world_size)
    while True:
        texts = [requests.prompt(1000 + number + i, 12) for i in range(at_once)]
        documents = [requests.body("completions", model, text, output_tokens=24, ignore_eos=True) for text in texts]
        outcomes, _seconds = openai.load(where, requests.PATHS["completions"], documents, concurrency=at_once, key=key, timeout=60)
        tokens += sum(o.output_tokens for o in outcomes if o.ok)
        errors += [o.error for o in outcomes if o.error]
        number += at_once
        passed = time.monotonic() - since
        seen = all(len(w.samples) >= 2 or w.problem for w in watches.values())
        if errors or passed >= MOST_SECONDS or (passed >= seconds and seen):
            return tokens, errors
