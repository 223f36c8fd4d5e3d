# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs in Kubernetes: RuntimeClass, device plugin, what each node offers, and a CUDA call on each of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.images.reference import Reference
from ansible_collections.motley.inference.plugins.module_utils.kube import gpu, waits
from ansible_collections.motley.inference.plugins.module_utils.kube.objects import Identity, Object
from ansible_collections.motley.inference.plugins.module_utils.serving import layout, manifests
from ansible_collections.motley.inference.plugins.plugin_utils import remote, serving
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Kube, apply_all, delete_all

PLUGIN = Identity("apps/v1", "DaemonSet", gpu.PLUGIN, gpu.PLUGIN_NAMESPACE)
FACT = "cuda"


class ActionModule(MotleyAction):
    """Cluster-scoped: acts on all planned nodes at once."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "timeout": {"type": "int", "default": 1800},
        "handler": {"type": "str", "default": "nvidia"},
        "cuda_check": {"type": "bool", "default": True},
        "cuda_megabytes": {"type": "int", "default": 16},
    }
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        context.require_all_nodes()
        cluster = context.cluster()
        planned = {n["name"]: len(n["devices"]) for n in cluster["nodes"]}
        version = serving.plugin_image(cluster)
        gpu.check_plugin(str(version.tag), unified=[n["name"] for n in cluster["nodes"] if "gb10" in n["accelerators"]])
        plugin = serving.locked_image(context, version)[0]
        engine = serving.locked_image(context, serving.engine_image(cluster, context.plan()))[0]
        definitions = [manifests.namespace(), gpu.runtime_class(args["handler"]), gpu.device_plugin(plugin, list(planned))]
        jobs = _jobs(context, cluster, engine, planned, args["cuda_megabytes"])
        serving.render(context, "gpu_device_plugin.yml", [*definitions, *jobs.values()])
        kube = serving.client(context)
        if kube is None:
            return {"changed": True, "objects": [], "gpus": {}, "cuda": {}}
        changes = []
        if cluster["rebuild"] and not context.check_mode:
            changes += delete_all(kube, [PLUGIN], timeout=120)
        changes += apply_all(kube, definitions, dry_run=context.check_mode)
        serving.pass_on_warnings(context, kube)
        result = {"changed": any(c.changed for c in changes), "objects": serving.summary(context, changes), "diff": serving.diff_of(changes)}
        if context.check_mode:
            return {**result, "gpus": {n: gpu.offered(o) for n, o in _nodes(kube).items()}, "cuda": {}}
        nodes = _wait_for_gpus(context, kube, planned, timeout=args["timeout"])
        offers = {name: gpu.offered(nodes[name]) for name in planned}
        if not args["cuda_check"]:
            return {**result, "gpus": offers, "cuda": {}}
        tested, ran = _cuda(context, kube, jobs, nodes, planned, engine, timeout=args["timeout"], anew=bool(cluster["rebuild"]))
        return {**result, "changed": result["changed"] or ran, "gpus": offers, "cuda": tested}


def _jobs(context: Context, cluster: Mapping[str, Any], engine: Reference, planned: Mapping[str, int], megabytes: int) -> dict[str, Object]:
    script = remote.source("cuda_check")
    found = {}
    for node in cluster["nodes"]:
        arch = str(context.state.node_facts(node["name"]).get("architecture") or node["arch"])
        found[node["name"]] = gpu.cuda_job(
            node["name"], arch=arch, image=engine, gpus=planned[node["name"]], script=script, megabytes=megabytes, namespace=layout.NAMESPACE
        )
    return found


def _nodes(kube: Kube) -> dict[str, Object]:
    return {n["metadata"]["name"]: n for n in kube.list_objects("v1", "Node")}


def _wait_for_gpus(context: Context, kube: Kube, planned: Mapping[str, int], *, timeout: float) -> dict[str, Object]:
    """Until every node offers its GPUs. Desired is compared with the plan: nodes that are passed over are not counted as missing."""
    since, pause = time.monotonic(), 0.3
    while True:
        daemonset, nodes = kube.get(PLUGIN) or {}, _nodes(kube)
        short = gpu.shortage(nodes, planned)
        problem = gpu.plugin_problem(daemonset, list(planned))
        if not short and not problem:
            return nodes
        state = problem or ", ".join(f"{name} {text}" for name, text in short.items())
        waited = time.monotonic() - since
        if waited > min(timeout, 20) or waited > timeout:
            _explain(kube, short, state, final=waited > timeout, waited=waited)
        context.progress(state, since, key="gpu_device_plugin")
        time.sleep(pause)
        pause = min(3.0, pause * 1.4)


def _explain(kube: Kube, short: Mapping[str, str], state: str, *, final: bool, waited: float) -> None:
    """Say why there are no GPUs, if the plugin's own log or the events tell; else only at the end of the time."""
    pods = kube.list_objects("v1", "Pod", namespace=gpu.PLUGIN_NAMESPACE, labels=f"app.kubernetes.io/name={gpu.PLUGIN}")
    for pod in pods:
        name, node = pod["metadata"]["name"], str((pod.get("spec") or {}).get("nodeName") or "")
        if node and node not in short:
            continue
        log = ""
        for previous in (False, True):
            with contextlib.suppress(MotleyError):
                log += kube.logs(gpu.PLUGIN_NAMESPACE, name, tail=50, previous=previous)
        cause = gpu.plugin_log_cause(log)
        if cause:
            raise MotleyError(cause[0], node=node, hint=cause[1], evidence=[line for line in log.splitlines() if line.strip()][-2:])
    reason = waits.reason_of_events(kube.events(gpu.PLUGIN_NAMESPACE), gpu.PLUGIN)
    remedy = waits.remedy(reason)
    if final or (reason and remedy):
        hint = remedy or (
            "look at the device plugin: kubectl logs -n kube-system daemonset/nvidia-device-plugin. After a Pod that held GPUs was deleted, a lost "
            "registration shows as 0: delete the plugin's Pod on that node"
        )
        raise MotleyError(f"after {waited:.0f} s: {state}", hint=hint, evidence=[line for line in (reason,) if line])


def _cuda(
    context: Context,
    kube: Kube,
    jobs: Mapping[str, Object],
    nodes: Mapping[str, Object],
    planned: Mapping[str, int],
    engine: Reference,
    *,
    timeout: float,
    anew: bool,
) -> tuple[dict[str, Any], bool]:
    """Results per node, and whether any was made now. A result counts until image, boot, driver or the number of cards change."""
    results: dict[str, Any] = {}
    keys = {}
    open_ones = []
    for name, gpus in planned.items():
        facts = context.state.node_facts(name)
        info = (nodes[name].get("status") or {}).get("nodeInfo") or {}
        keys[name] = gpu.cuda_key(image=engine.digest or str(engine), boot_id=str(info.get("bootID", "")), driver=facts.get("driver"), gpus=gpus)
        known = facts.get(FACT) or {}
        if known.get("key") == keys[name] and not anew:
            results[name] = known["result"]
        else:
            open_ones.append(name)
    if not open_ones:
        return results, False
    running = {p["spec"].get("nodeName"): p for p in kube.list_objects("v1", "Pod", namespace=layout.NAMESPACE, labels="app.kubernetes.io/name=ray")}
    for name in list(open_ones):
        pod = running.get(name)
        if pod and waits.pod_state(pod).done:
            # Its GPUs are the service's: make the call from inside, without taking memory from it.
            done = kube.exec(layout.NAMESPACE, pod["metadata"]["name"], ["python3", "-c", remote.source("cuda_check"), "0"], timeout=120)
            seen = gpu.cuda_result(done.stdout)
            gpus = int(pod["spec"]["containers"][0]["resources"]["limits"].get(gpu.RESOURCE, planned[name]))
            gpu.check_cuda(name, seen, planned=min(gpus, planned[name]), log=done.stdout + done.stderr)
            results[name] = seen
            open_ones.remove(name)
    results.update(_run_jobs(context, kube, {name: jobs[name] for name in open_ones}, planned, timeout=timeout))
    for name, seen in results.items():
        context.state.record_facts(name, {FACT: {"key": keys[name], "result": seen}}, source="a CUDA call in a container of the engine's image")
    return results, True


def _run_jobs(context: Context, kube: Kube, jobs: Mapping[str, Object], planned: Mapping[str, int], *, timeout: float) -> dict[str, Any]:
    """All Jobs at once; each one's result as soon as it has ended."""
    if not jobs:
        return {}
    who = {name: Identity("batch/v1", "Job", gpu.job_name(name), layout.NAMESPACE) for name in jobs}
    delete_all(kube, who.values(), timeout=60)  # what an interrupted run left
    apply_all(kube, jobs.values())
    results: dict[str, Any] = {}
    since, pause = time.monotonic(), 0.3
    while set(results) != set(jobs):
        found = {j["metadata"]["name"]: j for j in kube.list_objects("batch/v1", "Job", namespace=layout.NAMESPACE)}
        states = {}
        for name in sorted(set(jobs) - set(results)):
            state = waits.predicate("Job")(found.get(who[name].name, {}))
            if state.done or state.failed:
                results[name] = _result(kube, name, planned[name])
            else:
                states[name] = state.text
        if states:
            texts = _pods(kube, states)
            waited = time.monotonic() - since
            if waited > timeout:
                text = "; ".join(f"{name}: {text}" for name, text in texts.items())
                remedy = waits.remedy(text) or "kubectl describe job -n motley shows why; free the GPUs that other Pods hold"
                raise MotleyError(f"waited {waited:.0f} s for the CUDA check: {text}", hint=remedy)
            shown = "; ".join(f"{name}: {text[:90]}" for name, text in texts.items())
            context.progress(f"the CUDA check ({shown})", since, key="gpu_device_plugin")
            time.sleep(pause)
            pause = min(2.0, pause * 1.3)
    delete_all(kube, who.values(), timeout=60)
    return results


def _pods(kube: Kube, states: Mapping[str, str]) -> dict[str, str]:
    """What the Pods of open Jobs are at (pulling an image of 10 GB takes its time)."""
    pods = kube.list_objects("v1", "Pod", namespace=layout.NAMESPACE, labels="app.kubernetes.io/name=cuda-check")
    texts = dict(states)
    for pod in pods:
        name = str(pod["metadata"]["labels"].get("motley.dev/node", ""))
        if name in texts:
            texts[name] = waits.pod_state(pod).text
    return texts


def _result(kube: Kube, node: str, planned: int) -> dict[str, Any]:
    pods = kube.list_objects("v1", "Pod", namespace=layout.NAMESPACE, labels=f"app.kubernetes.io/name=cuda-check,motley.dev/node={node}")
    log, why = "", ""
    for pod in pods:
        why = waits.pod_state(pod).text
        with contextlib.suppress(MotleyError):
            log = kube.logs(layout.NAMESPACE, pod["metadata"]["name"])
    seen = gpu.cuda_result(log)
    gpu.check_cuda(node, seen, planned=planned, log=log or why)
    return dict(seen or {})
