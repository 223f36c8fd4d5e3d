#!/usr/bin/env python3
"""Run the site playbook from CI with ansible-runner and say, in one line each, what failed.

usage: run.py PRIVATE_DATA_DIR [PLAYBOOK]      (default motley.inference.site)

The private data directory holds inventory/ and keeps artifacts/. It must stay between runs, or motley_state_dir must lie
outside it (here: env/extravars): the state directory holds the cluster's secrets, and losing it loses the cluster.
"""

from __future__ import annotations

import sys

import ansible_runner


def main() -> int:
    directory = sys.argv[1]
    playbook = sys.argv[2] if len(sys.argv) > 2 else "motley.inference.site"
    failures: list[str] = []

    def seen(event: dict) -> bool:
        data = event.get("event_data", {})
        if event.get("event") in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            failures.append(f"{data.get('host')}: {data.get('task')}: {data.get('res', {}).get('msg')}")
        return True

    run = ansible_runner.run(private_data_dir=directory, playbook=playbook, event_handler=seen, suppress_env_files=True)
    for line in failures:
        print(line, file=sys.stderr)
    print(f"{playbook}: {run.status}, changed on {sorted((run.stats or {}).get('changed', {}))}")
    return run.rc


if __name__ == "__main__":
    sys.exit(main())
