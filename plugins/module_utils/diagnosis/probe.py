# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is run inside a container to look at it, and how its answer is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.engine import logs

# Runs in the head's container with its own Python: the dashboard listens on loopback only, and the token is there.
# argv[1] is JSON: {"prefix": of the job's name, "words": of telling lines, "tail": how many last lines}.
_RAY = '''\
import json, os, sys, urllib.request
asked = json.loads(sys.argv[1])
token = os.environ.get("RAY_AUTH_TOKEN", "")
path = os.environ.get("RAY_AUTH_TOKEN_PATH")
if not token and path and os.path.exists(path):
    token = open(path).read().strip()
def get(where):
    request = urllib.request.Request("http://127.0.0.1:%d%s" % (asked["port"], where))
    if token:
        request.add_header("Authorization", "Bearer " + token)
    return json.load(urllib.request.urlopen(request, timeout=10))
def state(kind):
    return get("/api/v0/%s?detail=true&limit=1000" % kind)["data"]["result"]["result"]
answer = {"errors": []}
def attempt(name, what):
    try:
        answer[name] = what()
    except Exception as error:
        answer["errors"].append("%s: %s" % (name, error))
def jobs():
    found = [j for j in get("/api/jobs/") if str(j.get("submission_id") or "").startswith(asked["prefix"])]
    keep = ("submission_id", "status", "message", "start_time", "driver_node_id")
    # A running one last, whatever was started after it: the last one is the one that is looked at.
    return [{k: j.get(k) for k in keep} for j in sorted(found, key=lambda j: (j.get("status") == "RUNNING", j.get("start_time") or 0))]
def log():
    if not answer.get("jobs"):
        return ""
    lines = get("/api/jobs/%s/logs" % answer["jobs"][-1]["submission_id"])["logs"].splitlines()
    first = max(0, len(lines) - asked["tail"])
    return "\\n".join(l for i, l in enumerate(lines) if i >= first or any(w in l for w in asked["words"]))
attempt("jobs", jobs)
attempt("log", log)
keep = ("name", "class_name", "node_id", "pid", "state", "actor_id")
attempt("actors", lambda: [{k: a.get(k) for k in keep} for a in state("actors")])
attempt("ray_nodes", lambda: [{k: n.get(k) for k in ("node_id", "node_ip", "node_name", "state")} for n in state("nodes")])
print("MOTLEY_RAY" + json.dumps(answer))
'''


def ray_command(job_prefix: str, *, port: int, tail: int = 40) -> list[str]:
    """The command that reads jobs, log, actors and nodes in the head's container."""
    return ["python3", "-c", _RAY, json.dumps({"prefix": job_prefix, "port": port, "words": logs.TELLING, "tail": tail})]


def ray_answer(stdout: str) -> dict[str, Any]:
    """Evidence keys job, log, actors, ray_nodes from the command's output; ValueError if there is none in it."""
    line = next((x for x in stdout.splitlines() if x.startswith("MOTLEY_RAY{")), None)
    if line is None:
        raise ValueError("no answer")
    answer = json.loads(line[len("MOTLEY_RAY"):])
    jobs: Sequence[dict[str, Any]] = answer.get("jobs") or []
    job = jobs[-1] if jobs else {}
    return {
        "job": {"id": job.get("submission_id"), "status": job.get("status"), "message": job.get("message"), "start": job.get("start_time")},
        "log": answer.get("log") or "", "actors": answer.get("actors"), "ray_nodes": answer.get("ray_nodes"), "errors": answer.get("errors") or [],
    }
