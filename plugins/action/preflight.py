# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse what cannot work before anything is touched."""

from __future__ import annotations

import re
import shutil
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import yaml
from ansible_collections.motley.inference.plugins.module_utils import inventory
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.plugin_utils.action import Context, MotleyAction
from ansible_collections.motley.inference.plugins.plugin_utils.process import run
from ansible_collections.motley.inference.plugins.plugin_utils.state import RESTARTING

# launcher x workload that the serving roles build (docs/serving).
SUPPORTED = {("ray", "pod")}
PLATFORMS = {"talos"}
PORTS = {"talos": 50000, "k3s": 22, "host": 22, "kubernetes": 6443}
# An installation pulls an image, and big machines take minutes to start.
RESTART_SECONDS = 600
LIBRARIES = {"kubernetes": "kubernetes"}


class ActionModule(MotleyAction):
    """scope inventory: names, types, secrets, tools; scope reach: whether the machines answer."""

    ARGUMENTS: ClassVar[dict[str, Any]] = {
        "scope": {"type": "str", "choices": ["inventory", "reach"], "default": "inventory"},
        "options": {"type": "list", "elements": "str", "default": []},
    }
    MUTATES = True

    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        if args["scope"] == "reach":
            return _reach(context)
        if context.check_mode:
            context.state.empty_check()
        _inventory(context, [*args["options"], *_role_options()])
        cluster = context.cluster()
        tools = _tools(cluster)
        return {"cluster": cluster["name"], "nodes": [n["name"] for n in cluster["nodes"]], "tools": tools, "state_dir": str(context.state.root)}


def _inventory(context: Context, options: list[str]) -> None:
    hosts, groups = context.inventory()
    secret = inventory.literal_secrets(context.raw_variables())
    if secret:
        raise MotleyError(f"the inventory holds a secret in the clear: {', '.join(secret)}",
                          hint="give a file (motley_hf_token_file: ~/.config/motley/hf_token), or vault the value: "
                               "ansible-vault encrypt_string --stdin-name motley_hf_token; and change the secret: it has been in a file")
    problems = inventory.problems(hosts, groups, extra=options)
    if problems:
        raise MotleyError(f"the inventory has {len(problems)} problem{'s' * (len(problems) > 1)}", evidence=problems,
                          hint="correct them and run again; nothing has been touched")
    cluster = context.cluster()
    if cluster["platform"] not in PLATFORMS:
        raise MotleyError(f"platform {cluster['platform']} is not built yet", hint=f"supported: {', '.join(sorted(PLATFORMS))}")
    if (cluster["launcher"], cluster["workload"]) not in SUPPORTED:
        raise MotleyError(f"launcher {cluster['launcher']} with workload {cluster['workload']} is not supported",
                          hint="supported: " + ", ".join(f"{a} with {b}" for a, b in sorted(SUPPORTED)))


def _role_options() -> list[str]:
    """Names, without prefix, of the options that the roles of this collection document."""
    names: list[str] = []
    for spec in Path(__file__).resolve().parents[2].glob("roles/*/meta/argument_specs.yml"):
        entries = (yaml.safe_load(spec.read_text()) or {}).get("argument_specs", {})
        names += [name.removeprefix("motley_") for entry in entries.values() for name in entry.get("options") or {}]
    return names


def _tools(cluster: dict[str, Any]) -> dict[str, str]:
    missing = [package for module, package in LIBRARIES.items() if module not in sys.modules and not _importable(module)]
    if missing:
        raise MotleyError(f"Python libraries are missing for {sys.executable}: {', '.join(missing)}",
                          hint=f"{sys.executable} -m pip install {' '.join(missing)}")
    if cluster["platform"] != "talos":
        return {}
    name, wanted = cluster["talos"]["talosctl"], cluster["talos"]["version"] or ""
    if not shutil.which(name):
        raise MotleyError(f"talosctl is missing ({name} is not on the PATH)",
                          hint=f"get it from {cluster['talos']['factory_url']}/talosctl/{wanted or 'VERSION'}, or set motley_talosctl to its path")
    done = run([name, "version", "--client", "--short"], timeout=20)
    seen = re.search(r"v(\d+)\.(\d+)\.\d+\S*", done.out)
    asked = re.match(r"v(\d+)\.(\d+)\.", wanted)
    if seen and asked and (int(seen[1]), int(seen[2])) < (int(asked[1]), int(asked[2])):
        raise MotleyError(f"talosctl is {seen[0]}, older than {wanted} that the machines shall run",
                          hint=f"get {wanted} from {cluster['talos']['factory_url']}/talosctl/{wanted}")
    return {"talosctl": seen[0] if seen else "unknown"}


def _importable(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def _reach(context: Context) -> dict[str, Any]:
    """Try the platform's port on every node at once, 3 s at most; a note in check mode. A machine that a run has left restarting gets time."""
    cluster = context.cluster()
    port, since = PORTS[cluster["platform"]], time.monotonic()
    while True:
        silent = _silent(cluster["nodes"], port)
        away = [name for name in silent if context.state.node_facts(name).get(RESTARTING)]
        if not away or len(away) < len(silent) or context.check_mode or time.monotonic() - since > RESTART_SECONDS:
            break
        context.progress(f"{', '.join(away)}, which an earlier run has made restart", since, key="preflight")
        time.sleep(1)
    if silent and context.check_mode:
        context.display("  note: no answer from " + "; ".join(silent.values()))
    elif silent:
        raise MotleyError("not every machine answers", evidence=list(silent.values()),
                          hint="power it on, and boot it from its own medium if it has no Talos yet "
                               "(ansible-playbook motley.inference.media prints which); check ansible_host and the network")
    return {"silent": list(silent.values())}


def _silent(nodes: list[dict[str, Any]], port: int) -> dict[str, str]:
    """Machines that do not answer, each with a text that says where it was asked and what came."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        answers = list(pool.map(lambda node: _answers(node["ansible_host"], port), nodes))
    return {n["name"]: f"{n['name']} ({n['ansible_host']}:{port}): {a}" for n, a in zip(nodes, answers, strict=True) if a}


def _answers(host: str, port: int) -> str | None:
    try:
        with socket.create_connection((host, port), timeout=3):
            return None
    except OSError as error:
        return str(error)
