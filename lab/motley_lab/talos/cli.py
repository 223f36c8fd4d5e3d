# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of talosctl: commands, flags and usage errors, from `tables/commands.txt`.

A line of the table: contract, command, aliases, arguments, `g` for the global flags, flags with type and default
(`:b` bool, `:l` list by commas, `:a` list, `:d` duration, `:i` integer, `:m` mode of applying, else text).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GLOBAL = "-c/--cluster --context -e/--endpoints:l -n/--nodes:l --siderov1-keys-dir --talosconfig"
MODES = {"apply": ("auto", "no-reboot", "reboot", "staged", "try"), "reboot": ("default", "force", "powercycle")}
REQUIRED = {"validate": ("mode",)}


class Failure(Exception):
    """The end of a command with exit code 1 and a text on standard error."""

    def __init__(self, text: str, usage: str | None = None) -> None:
        super().__init__(text)
        self.usage = usage


@dataclass(frozen=True)
class Flag:
    name: str
    short: str
    kind: str
    default: str


@dataclass
class Command:
    """One row of the table."""

    name: str
    aliases: list[str]
    arguments: str
    flags: dict[str, Flag]

    def usage(self) -> str:
        """What is printed after an error in the use of the command."""
        words = ["talosctl", *(self.name.split() if self.name != "talosctl" else ["[command]"]), self.arguments]
        tail = [] if self.arguments == "[command]" or self.name == "talosctl" else ["[flags]"]
        lines = [f"Usage:\n  {' '.join(word for word in words + tail if word)}"]
        if self.aliases:
            lines.append(f"\nAliases:\n  {', '.join([self.name.split()[-1], *self.aliases])}")
        types = {"l": "strings", "a": "stringArray", "d": "duration", "i": "int"}
        rows = [
            (f"{f'-{f.short}, ' if f.short else '    '}--{f.name} {types.get(f.kind, '' if f.kind == 'b' else 'string')}".rstrip(), f)
            for f in sorted(self.flags.values(), key=lambda flag: flag.name)
        ]
        lines.append("\nFlags:")
        lines += [f"  {head}" + (f"   (default {flag.default})" if flag.default else "") for head, flag in rows]
        return "\n".join(lines) + "\n"


@dataclass
class Call:
    """A parsed command line."""

    command: Command
    arguments: list[str] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        if name in self.given:
            return self.given[name]
        flag = self.command.flags.get(name)
        if flag is None or flag.kind == "b":
            return flag is not None and flag.default == "true"
        if flag.kind in "la":
            return [part for part in flag.default.strip("[]").split(",") if part]
        return flag.default


def _flag(text: str) -> Flag:
    head, _, default = text.partition("=")
    head, _, kind = head.partition(":")
    short, _, name = head.rpartition("/")
    return Flag(name.removeprefix("--"), short.removeprefix("-"), kind or "s", default.replace("~", " "))


def commands(contract: str) -> dict[str, Command]:
    found: dict[str, Command] = {}
    for line in (Path(__file__).parent / "tables" / "commands.txt").read_text(encoding="utf-8").splitlines():
        version, name, aliases, arguments, scope, flags = line.split("|")
        if version in ("*", contract):
            listed = [_flag(part) for part in f"{flags} {GLOBAL if scope else ''} -h/--help:b".split()]
            found[name] = Command(name, [a for a in aliases.split(",") if a], arguments, {f.name: f for f in listed})
    return found


def parse(argv: list[str], contract: str) -> Call:
    """Find the command and its flags; raise Failure as the real one words it."""
    table = commands(contract)
    names = {(name, *[name.rpartition(" ")[0] + " " + a for a in c.aliases]): name for name, c in table.items()}
    lookup = {word.strip(): name for words, name in names.items() for word in words}
    name, rest, waiting = "", [], []
    tokens = list(argv)
    while tokens:
        token = tokens.pop(0)
        if token == "--":
            rest += ["--", *tokens]
            break
        if token.startswith("-") and len(token) > 1:
            waiting.append(token)
            flag = _find(token, table[name] if name in table else table["version"])
            if flag and flag.kind != "b" and "=" not in token and (token.startswith("--") or len(token) == 2) and tokens:
                waiting.append(tokens.pop(0))
            continue
        deeper = lookup.get(f"{name} {token}".strip())
        if deeper and not rest:
            name = deeper
        elif not name:
            raise Failure(f'unknown command "{token}" for "talosctl"', table["talosctl"].usage())
        else:
            rest.append(token)
            waiting.append(token)
    command = table[name or "talosctl"]
    return _checked(_flags(command, waiting), command)


def _find(token: str, command: Command) -> Flag | None:
    if token.startswith("--"):
        return command.flags.get(token[2:].partition("=")[0])
    return next((flag for flag in command.flags.values() if flag.short == token[1]), None)


def _flags(command: Command, tokens: list[str]) -> Call:
    call = Call(command)
    tokens = list(tokens)
    while tokens:
        token = tokens.pop(0)
        if not token.startswith("-") or token == "-":
            call.arguments.append(token)
            continue
        flag = _find(token, command)
        if flag is None:
            text = f"unknown flag: {token.partition('=')[0]}" if token.startswith("--") else f"unknown shorthand flag: '{token[1]}' in {token}"
            raise Failure(text, command.usage())
        if token.startswith("--"):
            value: str | None = token.partition("=")[2] if "=" in token else None
        else:
            value = token[2:].removeprefix("=") if len(token) > 2 else None
            if flag.kind == "b" and value and token[2] != "=":
                tokens.insert(0, "-" + value)
                value = None
        if value is None and flag.kind != "b":
            if not tokens:
                raise Failure(f"flag needs an argument: {token if token.startswith('--') else repr(token[1]) + ' in ' + token}", command.usage())
            value = tokens.pop(0)
        _store(call, flag, value)
    return call


def _store(call: Call, flag: Flag, value: str | None) -> None:
    shown = f"-{flag.short}, --{flag.name}" if flag.short else f"--{flag.name}"
    problem = ""
    if flag.kind == "b":
        if value not in (None, "true", "false", "1", "0", "t", "f", "T", "F", "TRUE", "FALSE", "True", "False"):
            problem = f'strconv.ParseBool: parsing "{value}": invalid syntax'
        call.given[flag.name] = value is None or value[:1] in "1tT"
    elif flag.kind in "la":
        old = call.given.get(flag.name, [])
        call.given[flag.name] = old + ([value] if flag.kind == "a" else [part for part in str(value).split(",") if part])
    else:
        if flag.kind == "d" and not re.fullmatch(r"([0-9.]+(h|ms|us|m|s))+|0", value or ""):
            problem = f'time: invalid duration "{value}"'
        if flag.kind == "i" and not re.fullmatch(r"-?\d+", value or ""):
            problem = f'strconv.ParseInt: parsing "{value}": invalid syntax'
        if flag.kind == "m" and value not in MODES["apply"]:
            problem = f"possible options are: {', '.join(MODES['apply'])}"
        if (call.command.name, flag.name) in (("reboot", "mode"), ("upgrade", "reboot-mode")) and value not in MODES["reboot"]:
            problem = f"must be one of [{' '.join(MODES['reboot'])}]"
        call.given[flag.name] = value
    if problem:
        raise Failure(f'invalid argument "{value}" for "{shown}" flag: {problem}', call.command.usage())


def _checked(call: Call, command: Command) -> Call:
    if call["help"] or command.name == "talosctl" or command.arguments == "[command]":
        return call
    words = re.findall(r"<[^>]*>(?:\.\.\.)?|\[[^\]]*\]+(?:\.\.\.)?", command.arguments.replace("[<", "[").replace(">]", "]"))
    least = sum(word.startswith("<") for word in words)
    count, problem = len(call.arguments), ""
    if any(word.endswith("...") for word in words):
        problem = f"requires at least {least} arg(s), only received {count}" if count < least else ""
    elif not words and count:
        problem = f'unknown command "{call.arguments[0]}" for "talosctl {command.name}"'
    elif least == len(words) and count != least:
        problem = f"accepts {least} arg(s), received {count}"
    elif least == 0 and count > max(len(words), 2 if command.name == "service" else 0):
        problem = f"accepts at most {len(words)} arg(s), received {count}"
    elif not least <= count <= max(len(words), 2 if command.name == "service" else 0):
        problem = f"accepts between {least} and {len(words)} arg(s), received {count}"
    missing = [name for name in REQUIRED.get(command.name, ()) if name not in call.given]
    if not problem and missing:
        problem = "required flag(s) " + ", ".join(f'"{name}"' for name in missing) + " not set"
    if problem:
        raise Failure(problem, command.usage())
    return call


def seconds(text: str) -> float:
    """A Go duration in seconds."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 0.000001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+)(h|ms|us|m|s)", text))
