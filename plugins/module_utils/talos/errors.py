# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a talosctl call that ended means: by exit code and gRPC code, nested or flat.

Through a control plane the same error arrives as `PREFIX: 1 error occurred:\n\t* IP: rpc error: code = X desc = D`,
directly as `PREFIX: rpc error: code = X desc = D`; only `code = X desc = D` is looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# done: rc 0. already: what was asked for is there. retry: try again later. other_mode: not for this way of access, try
# the other one. foreign: another cluster's node or credentials. expired: own credentials have run out. usage: the
# call itself is wrong. fatal: trying again gives the same.
Kind = Literal["done", "already", "retry", "other_mode", "foreign", "expired", "usage", "fatal"]

_RPC = re.compile(r"code = (?P<code>[A-Za-z]+) desc = (?P<desc>.*?)(?=\n\t\* |\n\n|\Z)", re.DOTALL)

_USAGE = (
    "failed to determine endpoints",
    "nodes are not set for the command",
    "is not supported with multiple nodes",
    "requires exactly one node",
    "unknown flag",
    "unknown command",
    "unknown shorthand flag",
    "invalid argument",
    "required flag(s)",
    "arg(s)",
    "talos config file is empty",
    "failed to open config file",
    "not found in config",
    "no filename supplied",
    "should be defined",
    "flag needs an argument",
    "cannot use --",
)
_RETRY_PRECONDITION = ("not available yet", "not in sync yet", "already in progress", "node is rebooting")


@dataclass(frozen=True)
class Outcome:
    """Class of an ended call, its gRPC code and text, and whether the text is one that a TLS refusal also shows."""

    kind: Kind
    code: str = ""
    desc: str = ""
    ambiguous: bool = False

    @property
    def ok(self) -> bool:
        """It did what was asked."""
        return self.kind == "done"


def classify(rc: int, stderr: str) -> Outcome:
    """What this exit code and this error output mean."""
    if rc == 0:
        return Outcome("done")
    found = list(_RPC.finditer(stderr))
    if found:
        return max((_by_code(item["code"], item["desc"].strip()) for item in found), key=lambda item: _WEIGHT[item.kind])
    return _without_code(rc, stderr)


_WEIGHT: dict[str, int] = {"done": 0, "already": 1, "retry": 2, "other_mode": 3, "expired": 4, "usage": 5, "fatal": 6, "foreign": 7}


def _by_code(code: str, desc: str) -> Outcome:
    match code:
        case "Unavailable":
            return _unavailable(desc)
        case "AlreadyExists":
            return Outcome("already", code, desc)
        case "DeadlineExceeded":
            # A server-side check that ran into its deadline fails again; a plain deadline is a slow peer.
            return Outcome("fatal" if "is not healthy" in desc else "retry", code, desc)
        case "FailedPrecondition":
            return Outcome("retry" if any(text in desc for text in _RETRY_PRECONDITION) else "fatal", code, desc)
        case "PermissionDenied" if "no request forwarding" in desc:
            return Outcome("usage", code, desc)
        case "Canceled" | "Aborted" | "ResourceExhausted":
            return Outcome("retry", code, desc)
        case "Internal" if "invalid target" in desc:
            return Outcome("usage", code, desc)
    return Outcome("fatal", code, desc)


def _unavailable(desc: str) -> Outcome:
    code = "Unavailable"
    if "Ed25519 verification failure" in desc or "ECDSA verification failure" in desc:
        return Outcome("foreign", code, desc)
    if "x509:" in desc and "fingerprint" in desc or "leaf peer certificate" in desc:
        return Outcome("fatal", code, desc)
    if "signed by unknown authority" in desc or "tls: certificate required" in desc:
        return Outcome("other_mode", code, desc)
    if "tls: expired certificate" in desc or "certificate has expired" in desc:
        return Outcome("expired", code, desc)
    if "unknown certificate authority" in desc or "tls: bad certificate" in desc:
        return Outcome("foreign", code, desc)
    if "produced zero addresses" in desc:
        return Outcome("usage", code, desc)
    # A refused certificate and a dying peer look alike in these two; only trying again and the other mode tell.
    return Outcome("retry", code, desc, ambiguous="broken pipe" in desc or "connection reset by peer" in desc)


def _without_code(rc: int, stderr: str) -> Outcome:
    text = stderr.strip()
    last = text.splitlines()[-1] if text else ""
    if rc == 124:
        return Outcome("retry", desc="the call did not end in time")
    if rc == 127:
        return Outcome("usage", desc="talosctl is not installed, or not on the PATH")
    if any(part in text for part in _USAGE):
        return Outcome("usage", desc=text.splitlines()[0])
    if "already exists, use --force" in text:
        return Outcome("already", desc=text.splitlines()[0])
    if "connection refused" in text or "no route to host" in text or "i/o timeout" in text:
        return Outcome("retry", desc=last)
    # A wait that failed ends with a progress line and no error at all.
    if not text or last.endswith("unavailable, retrying...") or '": stage: ' in last or '": task: ' in last or '": actor ID' in last:
        return Outcome("retry", desc=last or "the call ended without a word")
    return Outcome("fatal", desc=text.splitlines()[0])


HINTS: dict[str, str] = {
    "retry": "the node may still be booting; look at its console, check address and cable, then run again: it goes on from here",
    "other_mode": "the node is in maintenance mode, or belongs to another cluster",
    "foreign": "the node was configured with other secrets: use the state directory it was installed from, set motley_talosconfig, "
    "or reset the node at its console (this erases it)",
    "expired": "the client certificate in talosconfig has run out (they live one year): remove talosconfig from the state directory and "
    "run --tags talos_config, which writes a new one from secrets.yaml",
    "usage": "this is a fault of the call, not of the node",
    "fatal": "trying again will give the same; the text above says why",
}
