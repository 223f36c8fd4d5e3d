# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One client for talosctl: lists of arguments, one node a call, a time limit around each, the runner from outside.

Each call goes to the node itself (`-e` = `-n` = its address), also on the control plane: so the answer is about that node
alone, and a control plane's cached connection to a rebooting node is never in the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.module_utils.talos import errors, redact, resources
from ansible_collections.motley.inference.plugins.plugin_utils import process
from ansible_collections.motley.inference.plugins.plugin_utils.process import Done, Runner

PORT = 50000
# A silent peer costs talosctl 20 s by itself.
CALL_SECONDS = 30.0
_TRIES = 4
_PAUSE = 0.3

StateKind = Literal["configured", "maintenance", "foreign", "expired", "unreachable"]


class TalosctlError(MotleyError):
    """A call that failed, with what kind of failure it is."""

    def __init__(
        self, message: str, *, outcome: errors.Outcome, hint: str = "", node: str | None = None, evidence: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint, node=node, evidence=evidence)
        self.outcome = outcome


@dataclass(frozen=True)
class NodeState:
    """What a node is to us: configured by our secrets, waiting in maintenance mode, somebody else's, or silent."""

    kind: StateKind
    status: resources.MachineStatus | None = None
    detail: str = ""
    certain: bool = False  # one answer alone proves it

    @property
    def stage(self) -> str:
        """Machine stage, as far as the node says."""
        return self.status.stage if self.status else ""

    @property
    def insecure(self) -> bool:
        """Whether calls have to go without client certificate."""
        return self.kind == "maintenance"


@dataclass(frozen=True)
class Target:
    """A node by its name in the inventory and its address on the network of the controller."""

    name: str
    address: str


class Talosctl:
    """talosctl with the credentials of one cluster."""

    def __init__(
        self,
        program: str = "talosctl",
        *,
        talosconfig: str | Path | None = None,
        run: Runner = process.run,
        sleep: Callable[[float], None] = time.sleep,
        secrets: Sequence[str] = (),
    ) -> None:
        self.program = program
        self.talosconfig = Path(talosconfig) if talosconfig else None
        self.secrets = tuple(secrets)
        self._run = run
        self._sleep = sleep

    @property
    def has_credentials(self) -> bool:
        """Whether there is a talosconfig; talosctl itself would make an empty one and then complain."""
        return self.talosconfig is not None and self.talosconfig.is_file()

    # -- calls -----------------------------------------------------------------------------------------------------
    def offline(self, arguments: Sequence[str], *, timeout: float = 60.0, what: str = "") -> Done:
        """A call that needs no node."""
        done = self._run([self.program, *arguments], timeout=timeout)
        outcome = errors.classify(done.rc, done.err)
        if not outcome.ok:
            raise self._error(what or f"talosctl {arguments[0]}", done, outcome, node=None)
        return done

    def attempt(
        self, target: Target, arguments: Sequence[str], *, insecure: bool = False, timeout: float = CALL_SECONDS
    ) -> tuple[Done, errors.Outcome]:
        """One call, once, and what its end means."""
        if insecure:
            argv = [self.program, "--nodes", target.address, *arguments, "--insecure"]
        elif self.has_credentials:
            argv = [
                self.program,
                "--talosconfig",
                str(self.talosconfig),
                "--endpoints",
                target.address,
                "--nodes",
                target.address,
                *arguments,
            ]
        else:
            raise MotleyError(
                "there is no talosconfig yet", hint="run --tags talos_config first, or set motley_talosconfig", node=target.name
            )
        done = self._run(argv, timeout=timeout)
        return done, errors.classify(done.rc, done.err)

    def call(
        self,
        target: Target,
        arguments: Sequence[str],
        *,
        insecure: bool = False,
        timeout: float = CALL_SECONDS,
        tries: int = _TRIES,
        what: str = "",
    ) -> Done:
        """A call that has to succeed; texts that a TLS refusal shares with a passing fault are tried again before they count."""
        for number in range(1, tries + 1):
            done, outcome = self.attempt(target, arguments, insecure=insecure, timeout=timeout)
            if outcome.ok:
                return done
            if not outcome.ambiguous or number == tries:
                break
            self._sleep(_PAUSE * number)
        raise self._error(what or f"talosctl {' '.join(arguments[:2])}", done, outcome, node=target.name)

    def get(
        self, target: Target, resource: str, *, insecure: bool = False, identifier: str = "", namespace: str = ""
    ) -> list[dict[str, Any]]:
        """Objects of a resource type of a node."""
        arguments = [
            "get",
            resource,
            *([identifier] if identifier else []),
            "--output",
            "json",
            *(["--namespace", namespace] if namespace else []),
        ]
        return resources.stream(self.call(target, arguments, insecure=insecure, what=f"reading {resource}").out)

    def version(self, target: Target, *, insecure: bool = False) -> resources.ServerVersion:
        """Talos release and architecture of a node."""
        done = self.call(target, ["version"], insecure=insecure, what="reading its version")
        found = resources.versions(done.out)
        if not found:
            raise MotleyError("talosctl version says nothing of the node", hint="check motley_talosctl", node=target.name)
        return found[0]

    def _error(self, what: str, done: Done, outcome: errors.Outcome, *, node: str | None) -> TalosctlError:
        lines = [line for line in redact.redact(done.err, secrets=self.secrets).splitlines() if line.strip()]
        usage = next((number for number, line in enumerate(lines) if line.startswith("Usage:")), len(lines))
        shown = lines[:usage][-6:]
        reason = redact.redact(outcome.desc, secrets=self.secrets) or "no reason given"
        return TalosctlError(
            f"{what} failed ({outcome.kind.replace('_', ' ')}, exit code {done.rc}): {reason}",
            outcome=outcome,
            hint=errors.HINTS.get(outcome.kind, ""),
            node=node,
            evidence=tuple(shown),
        )

    # -- state of a node -------------------------------------------------------------------------------------------
    def probe(self, target: Target) -> NodeState:
        """Find out what the node is to us; a reading call only.

        With credentials first, then without: the answer of one way of access explains the refusal of the other. Refusals
        race with closed connections, so an unclear pair of answers is asked for again. So is a pair that says "foreign":
        a node that leaves maintenance mode between the two calls gives the same pair, once.
        """
        detail, foreign = "", 0
        for number in range(1, _TRIES + 1):
            state, detail = self._probe_once(target)
            foreign += bool(state and state.kind == "foreign")
            if state is not None and (state.kind != "foreign" or foreign > 1 or not self.has_credentials or state.certain):
                return state
            self._sleep(1.0 if state else _PAUSE * number)
        return NodeState("unreachable", detail=detail)

    def _probe_once(self, target: Target) -> tuple[NodeState | None, str]:
        refused = "there are no credentials for it in the state directory"
        unclear = False
        if self.has_credentials:
            status, outcome = self._status(target, insecure=False)
            if outcome.ok:
                return NodeState("configured", status), ""
            if outcome.kind in ("foreign", "expired"):
                return NodeState("foreign" if outcome.kind == "foreign" else "expired", detail=outcome.desc, certain=True), ""
            if outcome.kind == "retry" and not outcome.ambiguous:
                return NodeState("unreachable", detail=outcome.desc), ""
            if outcome.kind in ("usage", "fatal"):
                raise MotleyError(f"asking for its state failed: {outcome.desc}", hint=errors.HINTS[outcome.kind], node=target.name)
            refused, unclear = outcome.desc, outcome.ambiguous
        status, outcome = self._status(target, insecure=True)
        if outcome.ok:
            return NodeState("maintenance", status), ""
        if outcome.kind == "retry" and not outcome.ambiguous:
            return NodeState("unreachable", detail=outcome.desc), ""
        if outcome.kind == "other_mode" and not unclear:
            return NodeState("foreign", detail=refused), ""
        # A machine that has just taken its configuration refuses the open way before the other one is there.
        leaving = "not authorized" in outcome.desc
        if outcome.kind in ("usage", "fatal") and not unclear and not leaving:
            raise MotleyError(f"asking for its state failed: {outcome.desc}", hint=errors.HINTS[outcome.kind], node=target.name)
        return None, outcome.desc or refused

    def _status(self, target: Target, *, insecure: bool) -> tuple[resources.MachineStatus | None, errors.Outcome]:
        done, outcome = self.attempt(target, ["get", "machinestatus", "--output", "json"], insecure=insecure)
        return (resources.machine_status(resources.stream(done.out)) if outcome.ok else None), outcome
