# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ray on the planned nodes (launcher ray, workload pod): namespace, configuration, secrets, head and worker Pods."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.kube import waits
from ansible_collections.motley.inference.plugins.module_utils.kube.objects import GENERATED, Identity, Object, fingerprint
from ansible_collections.motley.inference.plugins.module_utils.serving import layout, manifests, ray
from ansible_collections.motley.inference.plugins.module_utils.serving.layout import Layout
from ansible_collections.motley.inference.plugins.plugin_utils import serving
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Change, Kube, KubeError, apply_all, delete_all
from ansible_collections.motley.inference.plugins.plugin_utils.ray import RayApi

SUPPORTED = ("ray", "pod")
# A worker that came up before its head ends and is started again; only after the head has answered for so long is it broken.
GRACE_SECONDS = 90.0
RAY_PODS = "app.kubernetes.io/part-of=motley,app.kubernetes.io/name=ray"


class ActionModule(MotleyAction):
    """Cluster-scoped. A Pod that can not stay as it is takes the others with it: they are one group."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "files": {"type": "path", "required": True},
        "timeout": {"type": "int", "default": 900},
    }
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        context.require_all_nodes()
        cluster, plan = context.cluster(), context.plan()
        _supported(cluster)
        places = serving.make_layout(context, plan)
        kube = serving.client(context)
        keys = _secrets(context, kube)
        settings = _settings(context, cluster, plan, Path(args["files"]), keys)
        first = [manifests.namespace(), manifests.config_map(places, settings), *manifests.secrets(**keys)]
        pods = manifests.pods(places, settings)
        serving.render(context, "ray_cluster.yml", [*first, *pods])
        if kube is None:
            return {"changed": True, "objects": [], "nodes": {}, "rebuilt": False}
        changes = _apply_first(kube, first, context)
        more, rebuilt = _apply_pods(kube, pods, context, anew=bool(cluster["rebuild"]))
        changes += more
        serving.pass_on_warnings(context, kube)
        result = {"changed": any(c.changed for c in changes), "objects": serving.summary(context, changes), "diff": serving.diff_of(changes)}
        if context.check_mode:
            return {**result, "nodes": {}, "rebuilt": rebuilt}
        members = _wait(context, kube, places, timeout=args["timeout"])
        command = serving.go_on(context, "vllm_serve", "verify")
        if rebuilt and command:
            context.display(f"  the engine's job ended with the Pods; go on with:\n    {command}")
        return {**result, "nodes": members, "rebuilt": rebuilt, "go_on": command if rebuilt else ""}


def _supported(cluster: Mapping[str, Any]) -> None:
    if (cluster["launcher"], cluster["workload"]) != SUPPORTED:
        raise MotleyError(
            f"launcher {cluster['launcher']} with workload {cluster['workload']} is not supported",
            hint="set motley_launcher: ray and motley_workload: pod",
        )


def _secrets(context: Context, kube: Kube | None) -> dict[str, Any]:
    """Ray's token, the endpoint's key, the hub's token."""
    own = context.cluster()["secrets"]["api_key_file"]
    space = layout.NAMESPACE
    return {
        "ray_token": serving.secret_of(context, kube, file="ray_token", secret=(space, manifests.SECRET_RAY, "token")),
        "api_key": serving.secret_of(context, kube, file="api_key", secret=(space, manifests.SECRET_API, "api-key"), own_file=own),
        "hf_token": serving.hub_token(context),
    }


def _settings(context: Context, cluster: Mapping[str, Any], plan: Mapping[str, Any], folder: Path, keys: Mapping[str, Any]) -> manifests.Settings:
    image, known = serving.locked_image(context, serving.engine_image(cluster, plan))
    parts = [manifests.START_HOOK, *([manifests.REPORTER] if cluster["engine"]["stage_reporter"] else [])]
    # Ray's token is random, so the digest tells nothing of the others to whoever reads the annotation.
    digest = "" if keys["ray_token"] == GENERATED else fingerprint([keys["ray_token"], keys["api_key"], keys["hf_token"]])[:16]
    return manifests.Settings(
        image=str(image),
        shm_bytes=layout.shm_bytes(str(cluster["storage"]["shm_size"])),
        port=int(cluster["engine"]["port"]),
        files=_files(folder, parts),
        secrets=digest,
        pythonpath=known.get("pythonpath"),
    )


def _files(folder: Path, parts: Sequence[str]) -> dict[str, str]:
    """Texts below the role's files, by their path."""
    found = {}
    for part in parts:
        for file in sorted((folder / part).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc":
                found[str(file.relative_to(folder))] = file.read_text()
        if not any(name.startswith(f"{part}/") for name in found):
            raise MotleyError(f"{folder / part} is empty", hint="the collection is not complete; install it again")
    return found


def _apply_first(kube: Kube, definitions: list[Object], context: Context) -> list[Change]:
    """Namespace, configuration and secrets; an apply of everything is idempotent."""
    try:
        return apply_all(kube, definitions, dry_run=context.check_mode)
    except KubeError as error:
        if error.status == 403 and "terminated" in error.message:
            raise MotleyError("the namespace motley is being deleted", hint="wait until it is gone (kubectl get ns), then run again") from error
        raise


def _apply_pods(kube: Kube, wanted: Sequence[Object], context: Context, *, anew: bool) -> tuple[list[Change], bool]:
    """Create what is missing; if one Pod is outdated, take all down and make all anew. Second value: whether running ones were replaced."""
    live = {p["metadata"]["name"]: p for p in kube.list_objects("v1", "Pod", namespace=layout.NAMESPACE, labels=RAY_PODS)}
    names = [p["metadata"]["name"] for p in wanted]
    reasons = {name: why for pod, name in zip(wanted, names, strict=True) if (why := manifests.outdated(pod, live.get(name)))}
    reasons.update({name: "the plan has no place for it" for name in live if name not in names})
    if anew:
        reasons.update({name: "rebuild was asked for" for name in live})
    replaced = bool(reasons) or _loops(live.get(layout.HEAD))
    # A worker that has ended again and again waits for minutes before its next start: made anew, it starts at once.
    alone = [] if replaced else [name for name in names if _loops(live.get(name))]
    who = {name: Identity("v1", "Pod", name, layout.NAMESPACE) for name in {*names, *live}}
    if replaced:
        for name, why in reasons.items():
            context.display(f"  Pod {name}: {why}")
    if context.check_mode:
        return [_foreseen(who[p["metadata"]["name"]], p, live, replaced) for p in wanted] + [
            Change(who[name], "deleted") for name in live if name not in names
        ], replaced
    changes: list[Change] = []
    if replaced or alone:
        removed = delete_all(kube, [who[name] for name in (alone or live)], timeout=180)
        changes += [change for change in removed if change.identity.name not in names]
    for pod in wanted:
        name = pod["metadata"]["name"]
        before = None if replaced or name in alone else live.get(name)
        if before is not None and before["metadata"].get("labels") == pod["metadata"]["labels"]:
            changes.append(Change(who[name], "unchanged", live=before))
            continue
        (change,) = apply_all(kube, [pod], recreate=False)
        if name in live and before is None:
            change.action = "recreated"
        changes.append(change)
    return changes, replaced


def _foreseen(who: Identity, pod: Object, live: Mapping[str, Object], replaced: bool) -> Change:
    """What check mode says about a Pod: a dry run could not show a replacement, and a new one depends on what this run only would create."""
    before = live.get(who.name)
    if before is None:
        return Change(who, "created", {}, pod)
    if replaced:
        return Change(who, "recreated", {}, pod)
    return Change(who, "unchanged" if before["metadata"].get("labels") == pod["metadata"]["labels"] else "changed", {}, pod)


def _wait(context: Context, kube: Kube, places: Layout, *, timeout: float) -> dict[str, Any]:
    """Until all containers run and every planned node is ALIVE in Ray with its GPUs."""
    since, pause, head_up = time.monotonic(), 0.3, 0.0
    api = RayApi(kube)
    names = [places.pod_of(m.name) for m in places.members]
    while True:
        live = {p["metadata"]["name"]: p for p in kube.list_objects("v1", "Pod", namespace=layout.NAMESPACE, labels=RAY_PODS)}
        states = {name: waits.pod_state(live[name]) if name in live else waits.Progress(False, "does not exist") for name in names}
        open_ones = {name: state for name, state in states.items() if not state.done}
        text = "; ".join(f"{name}: {state.text}" for name, state in open_ones.items())
        waited = time.monotonic() - since
        if layout.HEAD not in open_ones:
            found = _ask(kube, api, names, last=waited > timeout)
            head_up = head_up or (time.monotonic() if found is not None else 0.0)
            membership = ray.compare(found or [], places)
            if found is not None and not open_ones and membership.complete:
                return {m.name: {"address": m.address, "gpus": m.gpus, "pod": places.pod_of(m.name)} for m in places.members}
            text = text or (membership.text() if found is not None else "Ray's dashboard")
        settled = bool(head_up) and time.monotonic() - head_up > GRACE_SECONDS
        broken = [n for n, s in open_ones.items() if s.failed or (_loops(live.get(n)) and (settled or n == layout.HEAD))]
        if broken:
            raise _broken(kube, broken[0], open_ones[broken[0]])
        if waited > timeout:
            reason = waits.reason_of_events(kube.events(layout.NAMESPACE), "ray-")
            hint = waits.remedy(reason) or waits.remedy(text) or "kubectl logs and kubectl describe of these Pods show what they wait for"
            raise MotleyError(f"waited {waited:.0f} s for Ray: {text}", hint=hint, evidence=[line for line in (reason,) if line])
        context.progress(f"Ray ({text[:200]})", since, key="ray_cluster")
        time.sleep(pause)
        pause = min(2.0, pause * 1.3)


def _ask(kube: Kube, api: RayApi, names: Sequence[str], *, last: bool) -> list[ray.RayNode] | None:
    """Ray's nodes; None while the head does not answer."""
    try:
        found, anonymous = api.nodes()
    except MotleyError:
        if last:
            raise
        return None
    if anonymous:
        _close(kube, names)
    return found


def _loops(pod: Mapping[str, Any] | None) -> bool:
    """A container that has ended three times will not come up by waiting."""
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or []
    return any(int(s.get("restartCount", 0)) >= 3 and (s.get("state") or {}).get("waiting") for s in statuses)


def _broken(kube: Kube, name: str, state: waits.Progress) -> MotleyError:
    log = ""
    for previous in (True, False):
        try:
            log = log or kube.logs(layout.NAMESPACE, name, tail=30, previous=previous)
        except MotleyError:
            continue
    lines = [line for line in log.splitlines() if line.strip()][-6:]
    reason = waits.reason_of_events(kube.events(layout.NAMESPACE), name)
    remedy = next((r for text in (state.text, reason, log) if (r := waits.remedy(text))), "")
    problem = ray.start_problem(log)
    hint = problem[1] if problem else remedy or f"kubectl describe pod -n motley {name}"
    return MotleyError(f"Pod {name}: {problem[0] if problem else state.text}", hint=hint, evidence=[*([reason] if reason else []), *lines])


def _close(kube: Kube, names: Sequence[str]) -> None:
    """A Ray that answers without a token is an open door to every node: it is taken down at once."""
    delete_all(kube, [Identity("v1", "Pod", name, layout.NAMESPACE) for name in names], timeout=120)
    raise MotleyError(
        "Ray answers without the token: this Ray release knows no token authentication; its Pods were taken down again",
        hint="use an image with Ray 2.52 or newer (motley_image)",
    )
