# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ray's Jobs and State API, by a short script in the head's container: the dashboard listens on loopback only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.serving import layout, ray
from ansible_collections.motley.inference.plugins.plugin_utils import remote
from ansible_collections.motley.inference.plugins.plugin_utils.kube import Kube

NODES, JOBS = "/api/v0/nodes?detail=true", "/api/jobs/"


class RayApi:
    """Calls to the dashboard of the head's Pod."""

    def __init__(self, kube: Kube, *, namespace: str = layout.NAMESPACE, pod: str = layout.HEAD) -> None:
        self._kube, self._namespace, self._pod = kube, namespace, pod
        self._script = remote.source("ray_call")

    def calls(self, calls: Sequence[Mapping[str, Any]], *, timeout: float = 60.0) -> list[tuple[int, Any]]:
        """Several calls in one go: (status, body) each; status 0 where the dashboard does not answer yet."""
        argv = ["python3", "-c", self._script, json.dumps(list(calls), separators=(",", ":"))]
        done = self._kube.exec(self._namespace, self._pod, argv, container=layout.CONTAINER, timeout=timeout)
        if done.rc != 0:
            raise MotleyError(
                f"the call to Ray in {self._namespace}/{self._pod} failed (exit code {done.rc})",
                hint="look at the head's log: kubectl logs -n motley ray-head",
                evidence=done.stderr.strip().splitlines()[-3:],
            )
        return [(int(row["status"]), row["body"]) for row in json.loads(done.stdout)]

    def call(self, method: str, path: str, *, body: Any = None, tail: int | None = None) -> tuple[int, Any]:
        """One call."""
        call: dict[str, Any] = {"method": method, "path": path}
        if body is not None:
            call["body"] = body
        if tail:
            call["tail"] = tail
        return self.calls([call])[0]

    # -- what is there ---------------------------------------------------------------------------------------------
    def state(self) -> tuple[list[ray.Job], list[ray.RayNode]]:
        """Our jobs and all nodes, in one call."""
        (jobs_status, jobs), (nodes_status, nodes) = self.calls([{"method": "GET", "path": JOBS}, {"method": "GET", "path": NODES}])
        for status, body in ((jobs_status, jobs), (nodes_status, nodes)):
            self._refuse(status, body)
        return ray.jobs(jobs), ray.nodes(nodes)

    def nodes(self) -> tuple[list[ray.RayNode] | None, bool]:
        """(nodes, None while the dashboard does not answer; whether it answers without the token as well)."""
        (status, body), (open_status, dummy) = self.calls(
            [{"method": "GET", "path": NODES}, {"method": "GET", "path": "/api/version", "anonymous": True}]
        )
        if status == 0 or status >= 500:
            return None, False
        self._refuse(status, body)
        return ray.nodes(body), open_status == 200

    def job(self, job: str, *, tail: int = 60_000) -> tuple[ray.Job | None, str]:
        """A job and the end of its log."""
        (status, body), (dummy, log) = self.calls(
            [{"method": "GET", "path": f"{JOBS}{job}"}, {"method": "GET", "path": f"{JOBS}{job}/logs", "tail": tail}]
        )
        if status == 404:
            return None, ""
        self._refuse(status, body)
        found = ray.jobs([body])
        return (found[0] if found else None), str(log.get("logs") or "") if isinstance(log, dict) else ""

    # -- what changes ----------------------------------------------------------------------------------------------
    def submit(self, body: Mapping[str, Any]) -> None:
        status, answer = self.call("POST", JOBS, body=body)
        self._refuse(status, answer)

    def stop(self, job: str) -> None:
        status, answer = self.call("POST", f"{JOBS}{job}/stop", body={})
        if status != 404:
            self._refuse(status, answer)

    def _refuse(self, status: int, body: Any) -> None:
        if status == 0:
            raise MotleyError(f"Ray's dashboard in {self._pod} does not answer: {body}", hint="run --tags ray_cluster, which waits for it")
        if status in (401, 403):
            hint = "run --tags ray_cluster -e motley_rebuild=true: it gives all Pods one token"
            raise MotleyError(f"Ray does not accept the token ({status})", hint=hint)
        if status >= 400:
            text = str(body.get("msg") or body) if isinstance(body, Mapping) else str(body)
            last = text.strip().splitlines()[-1][:300] if text.strip() else "no reason given"
            raise MotleyError(f"Ray answers {status}: {last}", hint="run again; kubectl logs -n motley ray-head shows the head's side")
