# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ray's Jobs and State API are asked for a proof, and how the answers become evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.motley.inference.plugins.module_utils.engine import logs

JOBS = "/api/jobs/"
LAST_LINES = 40
_JOB_KEYS = ("submission_id", "status", "message", "start_time")
_ACTOR_KEYS = ("name", "class_name", "node_id", "pid", "state")
_NODE_KEYS = ("node_id", "node_ip", "node_name", "state")


def first_calls() -> list[dict[str, Any]]:
    """Jobs, actors and nodes."""
    state = [f"/api/v0/{kind}?detail=true&limit=1000" for kind in ("actors", "nodes")]
    return [{"method": "GET", "path": path} for path in (JOBS, *state)]


def log_call(job: str) -> dict[str, Any]:
    """The telling lines of a job's log, and its last ones: a stage reports at its start, and logs grow."""
    return {"method": "GET", "path": f"{JOBS}{job}/logs", "keep": {"words": list(logs.TELLING), "lines": LAST_LINES}}


def evidence(answers: Sequence[tuple[int, Any]], *, prefix: str) -> dict[str, Any]:
    """Keys job, actors, ray_nodes and errors from the answers to first_calls(); prefix: of this plan's job names."""
    (jobs_status, jobs), (actors_status, actors), (nodes_status, nodes) = answers
    errors = [f"{what} answers {status or str(body)[:120]}" for what, status, body in (
        ("list of jobs", jobs_status, jobs), ("list of actors", actors_status, actors), ("list of nodes", nodes_status, nodes)) if status != 200]
    return {"job": _job(jobs, prefix) if jobs_status == 200 else None, "actors": _rows(actors, _ACTOR_KEYS), "ray_nodes": _rows(nodes, _NODE_KEYS),
            "log": "", "errors": errors}


def _job(answer: Any, prefix: str) -> dict[str, Any]:
    """The running job of the plan, else the one that was started last."""
    rows = [row for row in answer or [] if str(row.get("submission_id") or "").startswith(prefix)] if isinstance(answer, list) else []
    rows.sort(key=lambda row: (row.get("status") == "RUNNING", row.get("start_time") or 0))
    found = rows[-1] if rows else {}
    ident, status, message, start = (found.get(key) for key in _JOB_KEYS)
    return {"id": ident, "status": status, "message": message, "start": start}


def _rows(answer: Any, keys: Sequence[str]) -> list[dict[str, Any]] | None:
    """Rows of a State API answer; None where it did not answer as it should."""
    try:
        rows = answer["data"]["result"]["result"]
    except (KeyError, TypeError):
        return None
    return [{key: row.get(key) for key in keys} for row in rows]
