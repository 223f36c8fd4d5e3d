# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine: one Ray job with a known name, awaited until its API answers, and one Service (launcher ray)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.kube import waits
from ansible_collections.motley.inference.plugins.module_utils.planner import plan as make_plan
from ansible_collections.motley.inference.plugins.module_utils.serving import checks, layout, manifests, ray
from ansible_collections.motley.inference.plugins.module_utils.serving.layout import Layout
from ansible_collections.motley.inference.plugins.module_utils.serving.requests import Endpoint
from ansible_collections.motley.inference.plugins.plugin_utils import openai, remote, serving, yaml
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Change, Kube, apply_all
from ansible_collections.motley.inference.plugins.plugin_utils.ray import RayApi

STOP_SECONDS = 90.0
# After the end of a job its memory comes back with a delay.
SETTLE_SECONDS = 45.0


class ActionModule(MotleyAction):
    """Cluster-scoped. Unchanged while the wanted job runs and its API answers."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "timeout": {"type": "int", "default": 3600},
        "check_memory": {"type": "bool", "default": True},
    }
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        context.require_all_nodes()
        cluster, plan = context.cluster(), context.plan()
        places = serving.make_layout(context, plan)
        port = int(cluster["engine"]["port"])
        spec = ray.specification(cluster["model"]["name"], plan["engine"]["args"], plan["engine"].get("env") or {})
        service = manifests.service(places, port)
        _render(context, places, spec, service)
        kube = serving.client(context)
        url = Endpoint("http", places.head.address, port)
        result: dict[str, Any] = {"url": url.text, "model": cluster["model"]["name"]}
        if kube is None:
            return {**result, "changed": True, "job": "", "objects": []}
        api = RayApi(kube)
        pods = _pods(context, kube, places)
        if pods is None:  # check mode, before the Pods exist
            return {**result, "changed": True, "job": "", "objects": []}
        jobs, decision = _decide(api, places, spec, rebuild=bool(cluster["rebuild"]))
        if context.check_mode:
            changes = apply_all(kube, [service], dry_run=True)
            return _foreseen(context, result, changes, decision)
        changes = apply_all(kube, [service])
        key = serving.api_key(context)
        submitted = _launch(context, kube, api, places, plan, spec, decision, jobs, port, check=args["check_memory"])
        seconds = _wait(context, api, decision.id, places, url, key, timeout=args["timeout"])
        serving.pass_on_warnings(context, kube)
        command = serving.go_on(context, "verify") if submitted else ""
        if command:
            context.display(f"  the engine was started anew, so the last proof is void; go on with:\n    {command}")
        return {
            **result,
            "changed": submitted or any(c.changed for c in changes),
            "job": decision.id,
            "objects": serving.summary(context, changes),
            "diff": serving.diff_of(changes),
            "seconds": round(seconds, 1),
            "go_on": command,
        }


def _render(context: Context, places: Layout, spec: Mapping[str, Any], service: Mapping[str, Any]) -> None:
    """What will be launched, for reading: the job, the environment per node, the Service."""
    launch = {
        "job": f"{ray.PREFIX}{places.plan}-<number of the start>",
        "engine_node": places.head.name,
        "command": spec["entrypoint"],
        "environment_of_all_processes": spec["runtime_env"]["env_vars"],
        "environment_per_node": {m.name: dict(sorted(m.env.items())) for m in places.members},
        "ray_gpus": {m.name: m.gpus for m in places.members},
    }
    context.state.write_text("rendered/vllm_serve.yml", yaml.dump([launch, service]))


def _pods(context: Context, kube: Kube, places: Layout) -> dict[str, Any] | None:
    """The running Pods of the plan; refused when one is missing, because ray_cluster makes them."""
    live = {p["metadata"]["name"]: p for p in kube.list_objects("v1", "Pod", namespace=layout.NAMESPACE, labels=layout.SELECTOR)}
    problems = []
    for member in places.members:
        name = places.pod_of(member.name)
        if name not in live:
            problems.append(f"there is no Pod {name}")
        elif not (state := waits.pod_state(live[name])).done:
            problems.append(f"Pod {name} {state.text}")
    if problems and context.check_mode:
        context.display(f"  note: {'; '.join(problems)}; the engine was not looked at")
        return None
    if problems:
        raise MotleyError("; ".join(problems), hint="run --tags ray_cluster first")
    return live


def _decide(api: RayApi, places: Layout, spec: Mapping[str, Any], *, rebuild: bool) -> tuple[list[ray.Job], ray.Decision]:
    jobs, nodes = api.state()
    membership = ray.compare(nodes, places)
    if not membership.complete:
        raise MotleyError(f"Ray is not as planned: {membership.text()}", hint="run --tags ray_cluster, which brings it to the plan")
    return jobs, ray.decide(jobs, plan=places.plan, spec=ray.spec_digest(spec), rebuild=rebuild)


def _foreseen(context: Context, result: dict[str, Any], changes: Sequence[Change], decision: ray.Decision) -> dict[str, Any]:
    starts = decision.action == "submit"
    if starts:
        stops = f"stop {', '.join(decision.stop)} and " if decision.stop else ""
        context.display(f"  would {stops}submit the job {decision.id} ({decision.reason})")
    return {
        **result,
        "changed": starts or bool(decision.stop) or any(c.changed for c in changes),
        "job": decision.id,
        "objects": serving.summary(context, changes),
        "diff": serving.diff_of(changes),
    }


def _launch(
    context: Context,
    kube: Kube,
    api: RayApi,
    places: Layout,
    plan: Mapping[str, Any],
    spec: Mapping[str, Any],
    decision: ray.Decision,
    jobs: Sequence[ray.Job],
    port: int,
    *,
    check: bool,
) -> bool:
    """Stop what has to go, look at what is there, submit. Returns whether a job was submitted."""
    if decision.failed:
        context.display(f"  the last start, {decision.failed.id}, had failed; trying again")
    if decision.stop:
        _stop(context, api, decision.stop)
    if decision.action == "keep":
        return False
    if check:
        settle = SETTLE_SECONDS if decision.stop or any(not job.active for job in jobs) else 0.0
        _check_nodes(context, kube, places, plan, port, settle=settle)
    api.submit(ray.submission(spec, job=decision.id, plan=str(plan["inputs_sha256"])))
    context.display(f"  submitted the job {decision.id} on {places.head.name}")
    return True


def _stop(context: Context, api: RayApi, jobs: Sequence[str]) -> None:
    since = time.monotonic()
    for job in jobs:
        context.display(f"  stopping the job {job}")
        api.stop(job)
    while True:
        active = [job.id for job in api.state()[0] if job.id in jobs and job.active]
        if not active:
            return
        if time.monotonic() - since > STOP_SECONDS:
            raise MotleyError(
                f"the job {active[0]} does not end ({STOP_SECONDS:.0f} s)",
                hint="run --tags ray_cluster -e motley_rebuild=true, which takes its processes down with their containers",
            )
        context.progress(f"the end of {', '.join(active)}", since, key="vllm_serve")
        time.sleep(0.5)


# -- before the launch ---------------------------------------------------------------------------------------------------


def _check_nodes(context: Context, kube: Kube, places: Layout, plan: Mapping[str, Any], port: int, *, settle: float) -> None:
    """Free memory per device, available memory on unified ones, interface, port: refused with what would fit."""
    shm = layout.shm_bytes(str(context.cluster()["storage"]["shm_size"]))
    since = time.monotonic()
    while True:
        probes = {m.name: _probe(kube, places.pod_of(m.name), m.interface, port) for m in places.members}
        found = {m.name: checks.judge(m, probes[m.name], shm_bytes=shm) for m in places.members}
        shortages = [s for one in found.values() for s in one.shortages]
        taken = bool(probes[places.head.name].get("port_taken"))
        waited = time.monotonic() - since
        if (shortages or taken) and waited < settle:
            context.progress("the memory of the engine that was stopped", since, key="vllm_serve")
            time.sleep(1.5)
            continue
        break
    problems = [text for one in found.values() for text in one.problems]
    if problems:
        hints = [hint for one in found.values() for hint in one.hints]
        raise MotleyError("; ".join(problems), hint="; ".join(dict.fromkeys(hints)))
    if taken:
        raise MotleyError(
            f"port {port} on {places.head.name} is taken by another program", hint="end it, or set another motley_port and run from --tags plan"
        )
    if shortages:
        raise _too_little(plan, shortages)


def _probe(kube: Kube, pod: str, interface: str, port: int) -> dict[str, Any]:
    argv = ["python3", "-c", remote.source("node_probe"), interface, str(port)]
    done = kube.exec(layout.NAMESPACE, pod, argv, container=layout.CONTAINER, timeout=60)
    if done.rc != 0:
        evidence = done.stderr.splitlines()[-3:]
        raise MotleyError(f"the look at the node from Pod {pod} failed (exit code {done.rc})", hint="run again", evidence=evidence)
    return dict(json.loads(done.stdout))


def _too_little(plan: Mapping[str, Any], shortages: Sequence[checks.Shortage]) -> MotleyError:
    """Name what fits: a smaller fraction, else another partition, else what has to be freed."""
    options = []
    fraction = checks.fitting_fraction(shortages, plan)
    if fraction is not None:
        options.append(f"set motley_gpu_memory_utilization to {fraction:.2f} and run from --tags plan")
    layers = _other_layers(plan, shortages)
    if layers:
        options.append(f"give the node fewer layers: motley_layers: {json.dumps(layers)}, and run from --tags plan")
    options.append("end what else uses this memory (nvidia-smi; on unified memory drop the page cache), then run again")
    return MotleyError(
        "less memory is free than the plan needs: " + "; ".join(s.text() for s in shortages),
        hint=", or ".join(options),
        evidence=[s.text() for s in shortages],
    )


def _other_layers(plan: Mapping[str, Any], shortages: Sequence[checks.Shortage]) -> dict[str, Any]:
    """The partition that the planner finds with the memory that is really free; empty if it finds none."""
    request = json.loads(json.dumps(plan.get("request") or {}))
    if not request.get("nodes"):
        return {}
    fraction = float(plan["gpu_memory_utilization"])
    for node in request["nodes"]:
        devices: list[dict[str, Any]] = [{"accelerator": d} if isinstance(d, str) else d for d in node["devices"]]
        for short in (s for s in shortages if s.node == node["name"] and s.device < len(devices)):
            # The engine takes its fraction of the device's memory, so that is what may be as large as the free memory.
            devices[short.device]["memory_gib"] = round(short.free_gib / fraction, 3)
        node["devices"] = devices
    request.setdefault("engine", {})["partition_by_node"] = None
    try:
        other = make_plan(request)
    except (MotleyError, KeyError, ValueError):
        return {}
    if not other.get("feasible"):
        return {}
    layers: dict[str, dict[int, int]] = {}
    for stage in other["stages"]:
        for worker in stage["workers"]:
            layers.setdefault(worker["node"], {})[int(worker["device"])] = int(stage["layers"])
    return {node: [by[d] for d in sorted(by)] if len(by) > 1 else next(iter(by.values())) for node, by in layers.items()}


# -- until the API answers -----------------------------------------------------------------------------------------------


def _wait(context: Context, api: RayApi, job: str, places: Layout, url: Endpoint, key: str, *, timeout: float) -> float:
    """Until health and the list of models answer; the job's end before that is its failure. Seconds."""
    since, next_look, text = time.monotonic(), 0.0, "the engine starts"
    while True:
        problem = _answers(url, key)
        waited = time.monotonic() - since
        if not problem:
            return waited
        if waited >= next_look:
            found, log = api.job(job)
            if found is None or not found.active:
                ended = found or ray.Job(job, "UNKNOWN", "", "Ray knows no such job any more", 0)
                raise ray.failure(ended, log, node=places.head.name)
            text = ray.phase(log)
            next_look = waited + min(5.0, 1.5 + waited / 20)
        if waited > timeout:
            raise MotleyError(
                f"waited {waited:.0f} s for the engine: {text}; {url.text} says {problem}",
                node=places.head.name,
                hint="it goes on starting: run --tags vllm_serve again to wait on, or look at its log: "
                f"kubectl exec -n motley {layout.HEAD} -- ray job logs {job}",
            )
        context.progress(f"the engine on {places.head.name} ({text})", since, key="vllm_serve")
        time.sleep(0.5)


def _answers(url: Endpoint, key: str) -> str:
    """Empty when the API is healthy and lists a model with our key; else why not."""
    health = openai.fetch(url, "/health", timeout=5)
    if health.status != 200:
        return health.problem
    models = openai.fetch(url, "/v1/models", key=key, timeout=10)
    if models.status == 401:
        raise MotleyError(
            f"{url.text} does not accept the API key of the state directory",
            hint="the engine was started with another key: run --tags ray_cluster, then --tags vllm_serve",
        )
    listed = models.json() if models.status == 200 else None
    return "" if isinstance(listed, dict) and listed.get("data") else models.problem or "no model is listed"
