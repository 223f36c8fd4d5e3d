# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove that the running service is the planned one; the judgement is in module_utils/diagnosis/verify.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ansible_collections.motley.inference.plugins.module_utils.diagnosis import verify
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.serving import layout as places
from ansible_collections.motley.inference.plugins.module_utils.serving.layout import Layout
from ansible_collections.motley.inference.plugins.plugin_utils import evidence, serving
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Kube

FILE = "verify.json"


class ActionModule(MotleyAction):
    """Full at first and when something changed; quick when the same job of the same plan has passed before."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "form": {"type": "str", "choices": ["auto", "quick", "full"], "default": "auto"},
        "probe_seconds": {"type": "float", "default": 3.0},
    }

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        context.require_all_nodes()
        plan = context.plan()
        layout = serving.make_layout(context, plan)
        kube = serving.client(context)
        pods = evidence.pods(kube) if kube else {}
        if context.check_mode and not (pods.get(places.HEAD) or {}).get("running"):
            context.display("  note: the service does not run yet; nothing to verify")
            return {"form": "none", "passed": None, "checks": []}
        if kube is None or not (pods.get(places.HEAD) or {}).get("running"):
            raise MotleyError("the head's Pod does not run, so there is no service to verify", hint="run --tags ray_cluster,vllm_serve",
                              node=layout.head.name)
        seen = evidence.ray(kube, layout)
        seen["locked"], seen["images"] = _images(context, plan, layout, pods)
        return _Proof(context, plan, layout, kube).run(seen, args)


class _Proof:
    def __init__(self, context: Context, plan: Mapping[str, Any], layout: Layout, kube: Kube) -> None:
        self.context, self.plan, self.layout, self.kube = context, plan, layout, kube
        self.nodes = evidence.planned_nodes(layout)
        self.port = int(context.cluster()["engine"]["port"])
        self.key = serving.api_key(context)

    def run(self, seen: dict[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        before = self.context.state.read_json(FILE) or {}
        same = bool(before.get("passed")) and before.get("plan") == self.plan["inputs_sha256"] and before.get("job") == _name(seen)
        form = args["form"] if args["form"] != "auto" else "quick" if same or self.context.check_mode else "full"
        if form == "quick":
            seen.update(evidence.endpoint(self.layout.head.address, self.port, self.key, full=False))
            checks = verify.checks(self.plan, self.nodes, seen, quick=True)
            if verify.passed(checks):
                self._say_quick(seen, before if same else {})
                return {"form": "quick", "passed": True, "checks": [c.as_dict() for c in checks]}
            if args["form"] == "quick" or self.context.check_mode:
                return self._end("quick", checks, seen)
            self.context.display("  the quick look found something; the full proof follows")
        seen.update(evidence.endpoint(self.layout.head.address, self.port, self.key, full=True))
        if (seen.get("completion") or {}).get("ok"):
            seen.update(evidence.load(self.kube, self.layout, model=str(seen["model"]), key=self.key, port=self.port, seconds=args["probe_seconds"]))
        return self._end("full", verify.checks(self.plan, self.nodes, seen), seen)

    def _say_quick(self, seen: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        done = seen["completion"]
        since = f"; nothing has changed since the full proof of {before['time']}" if before.get("time") else ""
        self.context.display(f"  verified: {self.layout.world_size} ranks as planned, healthy, {done['output_tokens']} tokens "
                             f"in {done['seconds']:.2f} s{since}")

    def _end(self, form: str, checks: Sequence[verify.Check], seen: Mapping[str, Any]) -> dict[str, Any]:
        """Record, show, and fail with remedies if something is not as planned."""
        rows = [c.as_dict() for c in checks]
        passed = verify.passed(checks)
        for line in verify.table(rows):
            self.context.display(f"  {line}")
        if form == "full":
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.context.state.write_json(FILE, {"passed": passed, "checks": rows, "form": form, "plan": self.plan["inputs_sha256"],
                                                 "job": _name(seen), "time": now, "completion": seen.get("completion")})
        if not passed:
            raise MotleyError("the running service is not the planned one" if any(c.passed is False for c in checks)
                              else "it was not seen that the running service is the planned one", **_explained(checks, seen))
        unseen = [verify.title(c.id) for c in checks if c.passed is None]
        ok = sum(1 for c in checks if c.passed)
        self.context.display(f"  verified: {ok} of {len(checks)} checks" + (f"; not seen: {', '.join(unseen)}" if unseen else ""))
        return {"form": form, "passed": True, "checks": rows}


def _explained(checks: Sequence[verify.Check], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Evidence and hint of the failure: what is wrong where, and each remedy once."""
    bad = [c for c in checks if c.passed is False] or [c for c in checks if c.passed is None and verify.ESSENTIAL.match(c.id)]
    lines = [f"{c.node + ': ' if c.node else ''}{verify.title(c.id)}: expected {c.expected}, seen {c.seen}" for c in bad]
    lines += [f"Ray: {text}" for text in seen.get("errors") or []]
    remedies = list(dict.fromkeys(c.remedy for c in bad if c.remedy))
    return {"evidence": lines, "hint": "; ".join(remedies[:3])}


def _name(seen: Mapping[str, Any]) -> str | None:
    """A job with its start: a name alone may come back after Ray was started anew."""
    job = seen.get("job") or {}
    return f"{job['id']}@{job.get('start')}" if job.get("id") else None


def _images(context: Context, plan: Mapping[str, Any], layout: Layout, pods: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(locked image, image of each node)."""
    wanted = serving.engine_image(context.cluster(), plan)
    _pinned, entry = serving.locked_image(context, wanted)
    platforms = entry.get("platforms") or {}
    digests = list(platforms.values()) if isinstance(platforms, Mapping) else list(platforms)
    locked = {"image": str(wanted), "digest": entry.get("digest") or wanted.digest, "platforms": [d for d in digests if isinstance(d, str)]}
    return locked, {m.name: pods[layout.pod_of(m.name)] for m in layout.members if layout.pod_of(m.name) in pods}
