# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls to Ray's dashboard from inside the head's container: it listens on loopback only and wants the cluster's token.

Argument: JSON list of {"method", "path", "body", "tail", "keep", "anonymous"}; of a log, the last `tail` characters, or the lines that have one
of keep's `words` in them and the last `lines` ones. Answer: JSON list of {"status", "body"}, status 0 if nobody answers.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request

if __name__ == "__main__":
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    if not token and path:
        with open(path) as file:
            token = file.read().strip()
    results = []
    for call in json.loads(sys.argv[1]):
        data = json.dumps(call["body"]).encode() if call.get("body") is not None else None
        headers = {"Content-Type": "application/json"}
        if not call.get("anonymous"):
            headers["Authorization"] = "Bearer " + token
        request = urllib.request.Request("http://127.0.0.1:8265" + call["path"], data=data, method=call["method"], headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=20) as answer:
                status, text = answer.status, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode(errors="replace")
        except OSError as error:
            status, text = 0, str(error)
        try:
            body = json.loads(text)
        except ValueError:
            body = text
        tail = call.get("tail")
        if tail and isinstance(body, dict) and isinstance(body.get("logs"), str):
            body["logs"] = body["logs"][-tail:]
        keep = call.get("keep")
        if keep and isinstance(body, dict) and isinstance(body.get("logs"), str):
            lines = body["logs"].splitlines()
            first = len(lines) - keep["lines"]
            body["logs"] = "\n".join(text for at, text in enumerate(lines) if at >= first or any(word in text for word in keep["words"]))
        results.append({"status": status, "body": body})
    sys.stdout.write(json.dumps(results))
