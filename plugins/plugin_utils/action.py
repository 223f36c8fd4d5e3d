# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base class of every action of the collection."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.motley.inference.plugins.module_utils import inventory
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.plugin_utils.plain import to_plain
from ansible_collections.motley.inference.plugins.plugin_utils.process import die_with_parent
from ansible_collections.motley.inference.plugins.plugin_utils.state import StateDirectory

STATE_ARGUMENTS: dict[str, Any] = {"state_dir": {"type": "path"}}
PROGRESS_SECONDS = 10.0


class Context:
    """What an action may use besides its options."""

    def __init__(self, action: MotleyAction, task_vars: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        self._action = action
        self._vars = task_vars
        self._cluster: dict[str, Any] | None = None
        self._said: dict[str, float] = {}
        self.check_mode: bool = bool(action._task.check_mode)
        self.diff_mode: bool = bool(action._task.diff)
        self.host: str = str(task_vars.get("inventory_hostname", "localhost"))
        self.secrets: set[str] = set()
        self._state_dir = args.get("state_dir")

    @property
    def state(self) -> StateDirectory:
        """The state directory of option state_dir, else of motley_state_dir."""
        path = self._state_dir or self.variable("motley_state_dir") or inventory.state_dir(
            self.variable("motley_cluster"), self.variable("inventory_dir"), tempfile.gettempdir())
        return StateDirectory(str(path), check_mode=self.check_mode)

    def raw_variables(self) -> dict[str, Any]:
        """Variables of this host with our prefix as they were written: templates as text, vaulted ones encrypted."""
        return {name: self._vars[name] for name in self._vars if name.startswith("motley_")}

    def variable(self, name: str, default: Any = None) -> Any:
        """A variable of this host, templated, plain."""
        if name not in self._vars:
            return default
        return to_plain(self._action._templar.template(self._vars[name]))

    def cluster(self) -> dict[str, Any]:
        """The whole inventory, normalised (module_utils/inventory.py); the same on every host, whatever --limit says."""
        if self._cluster is None:
            self._cluster = inventory.cluster(*self.inventory())
        return self._cluster

    def inventory(self) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
        """(variables with our prefix and the connection's address per host, members per group), plain."""
        hostvars, groups = self._vars["hostvars"], to_plain(self._vars["groups"])
        names = groups.get("motley_nodes") or []
        hosts = {}
        for name in names:
            values = hostvars[name]
            hosts[name] = {key: to_plain(values[key]) for key in values
                           if key.startswith("motley_") or key in ("ansible_host", "ansible_connection", "inventory_dir")}
        return hosts, groups

    def node(self, name: str | None = None) -> dict[str, Any]:
        """The cluster's entry of this host (or of name)."""
        wanted = name or self.host
        for node in self.cluster()["nodes"]:
            if node["name"] == wanted:
                return dict(node)
        raise MotleyError(f"{wanted} is no member of the group motley_nodes", hint="run with an inventory that has it there")

    def plan(self) -> dict[str, Any]:
        """plan.json; refused when there is none or when the inventory has changed since."""
        plan = self.state.read_json("plan.json")
        if plan is None:
            raise MotleyError(f"there is no plan in {self.state.root}", hint="run --tags plan first")
        changed = inventory.changed_since(plan, self.cluster())
        if changed:
            raise MotleyError(f"the inventory has changed since the plan ({', '.join(changed)})", hint="run --tags plan")
        return dict(plan)

    def hosts_of_play(self) -> list[str]:
        """Planned hosts of this play that --limit leaves in."""
        return list(to_plain(self._vars.get("ansible_play_hosts_all") or self._vars.get("ansible_play_hosts") or []))

    def require_all_nodes(self) -> None:
        """Cluster-scoped steps: refuse a --limit that leaves out a planned node."""
        missing = [n["name"] for n in self.cluster()["nodes"] if n["name"] not in self.hosts_of_play()]
        if missing:
            raise MotleyError(f"this step works on the whole cluster, and --limit leaves out {', '.join(missing)}",
                              hint="run it without --limit")

    def display(self, text: str) -> None:
        """Text for a person, at once, also from threads."""
        Display().display(text)

    def warn(self, text: str) -> None:
        Display().warning(text)

    def progress(self, what: str, since: float, *, key: str = "") -> None:
        """'HOST: waiting for WHAT, N s so far', at most one line each 10 s; since is time.monotonic() of the start."""
        now, name = time.monotonic(), key or self.host
        if now - max(self._said.get(name, 0.0), since) >= PROGRESS_SECONDS:
            self._said[name] = now
            self.display(f"  {name}: waiting for {what}, {now - since:.0f} s so far")

    def wait(self, what: str, look: Callable[[], Any], *, timeout: float, every: float = 1.0, key: str = "", hint: str = "") -> Any:
        """Call look() until it returns something true and return that; MotleyError after timeout seconds."""
        since = time.monotonic()
        while True:
            seen = look()
            if seen:
                return seen
            if time.monotonic() - since > timeout:
                raise MotleyError(f"waited {timeout:.0f} s for {what}", hint=hint or "look at the node, then run again: it goes on from here",
                                  node=key or self.host)
            self.progress(what, since, key=key)
            time.sleep(every)

    def hide(self, *values: str | None) -> None:
        """Values that must never appear in a result."""
        self.secrets.update(v for v in values if v)


class MotleyAction(ActionBase):
    """An action: ARGUMENTS (argument spec), RULES (mutually_exclusive, required_if ...), MUTATES (takes the run lock).

    A subclass has one method, perform(args, context) -> result, with plain, validated args; it returns at least
    `changed`, raises MotleyError for what a person can act on, and writes nothing in check mode but through the state
    directory.
    """

    ARGUMENTS: ClassVar[dict[str, Any]] = {}
    RULES: ClassVar[dict[str, Any]] = {}
    MUTATES: ClassVar[bool] = False
    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True
    _requires_connection = False

    @abstractmethod
    def perform(self, args: dict[str, Any], context: Context) -> dict[str, Any]:
        """The work of one task."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Validate, run, translate errors, take secrets out of the result."""
        parent = _tied_parent()
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        variables = task_vars or {}
        try:
            args = to_plain(dict(self._task.args))
            spec = {**STATE_ARGUMENTS, **self.ARGUMENTS}
            checked = ArgumentSpecValidator(spec, **self.RULES).validate(args)
            if checked.error_messages:
                raise MotleyError("; ".join(checked.error_messages), hint=f"see ansible-doc {self._task.action}")
            args = checked.validated_parameters
            context = Context(self, variables, args)
            context.hide(*_secret_values(spec, args))
            if self.MUTATES and not context.check_mode:
                context.state.claim(parent)
            result.update(self.perform(args, context))
            result.setdefault("changed", False)
        except MotleyError as error:
            hidden = locals().get("context")
            return _without(hidden.secrets if hidden else set(),
                            {**result, "failed": True, "changed": bool(result.get("changed")), "msg": error.text(), "failure": error.as_dict()})
        return _without(context.secrets, result)


def _tied_parent() -> int:
    """The pid of ansible-playbook, from whose death on this worker may not go on; it may have died before we came here."""
    known = multiprocessing.parent_process()
    parent = known.pid if known and known.pid else os.getppid()
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:      # somebody else is our parent now, and would be taken for the holder of the lock
        os._exit(1)
    return parent


def _secret_values(spec: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
    return [str(args[name]) for name, option in spec.items() if option.get("no_log") and args.get(name)]


def _without(secrets: set[str], result: dict[str, Any]) -> dict[str, Any]:
    return dict(remove_values(result, {s for s in secrets if len(s) > 3})) if secrets else result
