# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of talosctl that need no node: gen, validate, machineconfig patch, config."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from motley_lab.talos import config as configs
from motley_lab.talos import generate, goyaml
from motley_lab.talos.cli import Call, Failure, seconds


def out(text: str) -> None:
    sys.stdout.write(text)


def err(text: str) -> None:
    sys.stderr.write(text)


def _read(path: str, prefix: str = "") -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"{prefix}open {path}: {(error.strerror or '').lower()}") from None


def _write(path: Path, text: str, *, force: bool, mode: int = 0o644) -> None:
    if path.exists() and not force:
        raise Failure(f'file "{path}" already exists, use --force to overwrite')
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def gen_secrets(call: Call, contract: str) -> None:
    path = Path(call["output-file"])
    if path.exists() and not call["force"]:
        raise Failure(f'file "{path}" already exists, use --force to overwrite')
    _write(path, goyaml.dump(generate.secrets_bundle()), force=True, mode=0o600)


def _contract(text: str, default: str) -> str:
    match = re.match(r"v?(\d+)\.(\d+)", text or "")
    if not match:
        if text:
            raise Failure(f"invalid talos-version: error parsing version {json.dumps(text)}")
        return default
    return "1.13" if (int(match[1]), int(match[2])) <= (1, 13) or default == "1.13" else "1.14"


def gen_config(call: Call, contract: str) -> None:
    name, endpoint = call.arguments
    if "://" not in endpoint:
        raise Failure(f'no scheme specified for the cluster endpoint URL\ntry: "https://{endpoint}"')
    wanted = _contract(call["talos-version"], contract)
    types = call["output-types"]
    for kind in types:
        if kind not in ("controlplane", "worker", "talosconfig"):
            raise Failure(f'unknown output type: "{kind}" (must be one of ["controlplane" "worker" "talosconfig"])')
    bundle = None
    if call["with-secrets"]:
        try:
            bundle = goyaml.load(_read(call["with-secrets"], "failed to load secrets bundle: "))
        except goyaml.YamlError as error:
            raise Failure(f"failed to load secrets bundle: {error}") from None
    patches = _patches(call, wanted, "error parsing config JSON patch: ")
    err("generating PKI and tokens\n")
    if not isinstance(bundle, dict) or "certs" not in bundle:
        bundle = generate.secrets_bundle()
    options = {key: call[key] for key in call.command.flags}
    options["kubernetes-version"] = str(options["kubernetes-version"]).removeprefix("v")
    texts: dict[str, str] = {}
    for kind in types:
        if kind == "talosconfig":
            texts[kind] = generate.talosconfig(name, bundle)
            continue
        config = generate.machine_config(kind, name, endpoint, bundle, contract=wanted, options=options)
        try:
            config = configs.patched(config, patches["config-patch"])
            config = configs.patched(config, patches["config-patch-control-plane" if kind == "controlplane" else "config-patch-worker"])
        except configs.ConfigError as error:
            raise Failure(str(error)) from None
        texts[kind] = config.text()
    _place(call, types, texts)


def _patches(call: Call, contract: str, prefix: str = "") -> dict[str, list[configs.Config | None]]:
    found: dict[str, list[configs.Config | None]] = {}
    for flag in ("config-patch", "config-patch-control-plane", "config-patch-worker"):
        try:
            found[flag] = [configs.read_patch(source, contract=contract) for source in call[flag] or []]
        except configs.ConfigError as error:
            raise Failure(prefix + str(error)) from None
    return found


def _place(call: Call, types: list[str], texts: dict[str, str]) -> None:
    output = call["output-dir"] or call["output"]
    if len(types) == 1 and output and not call["output-dir"]:
        if output == "-":
            out(texts[types[0]])
            return
        paths = {types[0]: Path(output)}
    else:
        if output == "-":
            raise Failure("can't use multiple output types with stdout output")
        folder = Path(output or ".")
        paths = {kind: folder / (kind if kind == "talosconfig" else f"{kind}.yaml") for kind in types}
    for path in paths.values():
        if path.exists() and not call["force"]:
            raise Failure(f'file "{path}" already exists, use --force to overwrite')
    for kind, path in paths.items():
        _write(path, texts[kind], force=True)
        err(f"Created {path}\n")


def validate(call: Call, contract: str) -> None:
    from motley_lab.talos import validate as rules

    text = _read(call["config"])
    try:
        config = configs.load(text, contract=contract)
    except configs.ConfigError as error:
        raise Failure(str(error)) from None
    mode = call["mode"]
    if mode not in rules.MODES:
        raise Failure(f'unknown runtime mode: "{mode}"')
    try:
        warnings = rules.validate(config, mode, strict=call["strict"])
    except rules.Errors as error:
        err("".join(f"WARNING: {text}\n" for text in error.warnings))
        raise Failure(str(error)) from None
    err("".join(f"WARNING: {text}\n" for text in warnings))
    out(f"{call['config']} is valid for {mode} mode\n")


def machineconfig_patch(call: Call, contract: str) -> None:
    text = _read(call.arguments[0])
    try:
        patches = [configs.read_patch(source, contract=contract) for source in call["patch"]]
        result = configs.patched(configs.load(text, contract=contract), patches).text()
    except configs.ConfigError as error:
        raise Failure(str(error)) from None
    if call["output"]:
        Path(call["output"]).write_text(result, encoding="utf-8")
    else:
        out(result)


class Context:
    """The client configuration file: contexts, and the one that a command uses."""

    def __init__(self, call: Call) -> None:
        self.path = Path(call["talosconfig"] or os.environ.get("TALOSCONFIG") or Path(os.environ.get("HOME", "/"), ".talos", "config"))
        self.data: dict[str, Any] = {"context": "", "contexts": {}}
        self.wanted = str(call["context"] or "")
        if not self.path.exists():
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                _write(self.path, goyaml.dump({"context": "", "contexts": {}}), force=True, mode=0o600)
            except OSError:
                return
            return
        text = self.path.read_text(encoding="utf-8")
        if not text.strip():
            raise Failure(f'failed to open config file "{self.path}": EOF')
        try:
            self.data |= goyaml.load(text)
        except (goyaml.YamlError, TypeError) as error:
            raise Failure(f'failed to open config file "{self.path}": {error}') from None

    @property
    def name(self) -> str:
        return self.wanted or str(self.data.get("context") or "")

    @property
    def current(self) -> dict[str, Any]:
        return (self.data.get("contexts") or {}).get(self.name) or {}

    def require(self) -> dict[str, Any]:
        prefix = "error constructing client: failed to create client connection: failed to resolve configuration context: "
        if not self.data.get("contexts"):
            raise Failure(prefix + "talos config file is empty")
        if self.name not in self.data["contexts"]:
            raise Failure(prefix + f'context "{self.name}" not found in config')
        return self.current

    def save(self) -> None:
        _write(self.path, goyaml.dump(self.data), force=True, mode=0o600)


def config_command(call: Call, contract: str) -> None:
    verb = call.command.name.split()[1]
    context = Context(call)
    if verb == "contexts":
        rows = [["CURRENT", "NAME", "ENDPOINTS", "NODES"]]
        for name, item in sorted((context.data.get("contexts") or {}).items()):
            rows.append(["*" if name == context.name else "", name, ",".join(item.get("endpoints") or []), ",".join(item.get("nodes") or [])])
        out(table(rows))
        return
    if verb in ("endpoint", "node"):
        if context.name not in (context.data.get("contexts") or {}):
            raise Failure("no context is set" if not context.name else f'context "{context.name}" is not defined')
        context.current["endpoints" if verb == "endpoint" else "nodes"] = list(call.arguments)
    elif verb == "context":
        if call.arguments[0] not in (context.data.get("contexts") or {}):
            raise Failure(f'context "{call.arguments[0]}" is not defined')
        context.data["context"] = call.arguments[0]
    elif verb == "merge":
        other = goyaml.load(_read(call.arguments[0])) or {}
        context.data["contexts"] = {**(context.data.get("contexts") or {}), **(other.get("contexts") or {})}
        context.data["context"] = other.get("context") or context.data.get("context")
    elif verb == "remove":
        (context.data.get("contexts") or {}).pop(call.arguments[0], None)
    elif verb == "info":
        _info(call, context)
        return
    else:
        raise Failure(f"501 not simulated in the lab: config {verb}")
    context.save()


def _info(call: Call, context: Context) -> None:
    from motley_lab.talos import pki

    if not context.current:
        raise Failure("no current context" if not context.name else f'context "{context.name}" is not defined')
    current = context.current
    roles, end = pki.facts(pki.unb64(current["crt"]))
    left, day = pki.remaining(end)
    if call["output"] == "json":
        shown = {"context": context.name, "nodes": current.get("nodes") or None, "endpoints": current.get("endpoints") or None,
                 "roles": roles, "certTTL": left, "certNotAfter": day}  # fmt: skip
        out(json.dumps(shown, indent=2) + "\n")
        return
    listed = [", ".join(current.get(key) or []) or "not defined" for key in ("nodes", "endpoints")]
    out(f"Current context:     {context.name}\nNodes:               {listed[0]}\nEndpoints:           {listed[1]}\n")
    out(f"Roles:               {', '.join(roles)}\nCertificate expires: {left} ({day})\n")


def table(rows: list[list[str]], gap: int = 3) -> str:
    """Columns as Go's tabwriter aligns them: each but the last is padded."""
    widths = [max(len(row[index]) for row in rows) + gap for index in range(len(rows[0]) - 1)]
    return "".join("".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + row[-1] + "\n" for row in rows)


COMMANDS = {
    "gen secrets": gen_secrets,
    "gen config": gen_config,
    "validate": validate,
    "machineconfig patch": machineconfig_patch,
    **{f"config {verb}": config_command for verb in ("endpoint", "node", "info", "contexts", "context", "merge", "remove", "add", "new")},
}
__all__ = ["COMMANDS", "Context", "err", "out", "seconds", "table"]
