# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for talosctl: the real one's arguments, exit codes and texts.

The version that it claims is MOTLEY_LAB_TALOSCTL_VERSION, or follows from the name it was called by
(`talosctl-1.13`, `talosctl-1.14`); without either it is the newest.
"""

from __future__ import annotations

import os
import re
import sys

from motley_lab.talos.cli import Call, Failure, parse


def version() -> tuple[str, str]:
    """The claimed tag and the contract that goes with it."""
    text = os.environ.get("MOTLEY_LAB_TALOSCTL_VERSION") or os.environ.get("MOTLEY_LAB_TALOSCTL_NAME", "")
    match = re.search(r"(\d+)\.(\d+)(\.\S+)?", text)
    contract = "1.13" if match and (int(match[1]), int(match[2])) <= (1, 13) else "1.14"
    default = {"1.13": "v1.13.9", "1.14": "v1.14.1"}[contract]
    return (f"v{match[0]}" if match and match[3] else default), contract


def client_version(tag: str, *, short: bool) -> str:
    if short:
        return f"Client:\nTalos {tag}\n"
    rows = (("Tag", tag), ("SHA", "undefined"), ("Built", ""), ("Go version", "go1.26.8"), ("OS/Arch", "linux/amd64"))
    return "Client:\n" + "".join(f"\t{name + ':':<13}{value}\n" for name, value in rows)


def run(call: Call, tag: str, contract: str) -> int:
    name = call.command.name
    if call["help"] or name == "talosctl" or call.command.arguments == "[command]":
        sys.stdout.write(call.command.usage())
        return 0
    if name == "version":
        if not call["json"]:
            sys.stdout.write(client_version(tag, short=call["short"]))
        if call["client"]:
            return 0
    from motley_lab.talos import offline

    if name in offline.COMMANDS:
        offline.COMMANDS[name](call, contract)
        return 0
    from motley_lab.talos import client

    return client.run(call, tag, contract)


def main(argv: list[str] | None = None) -> int:
    tag, contract = version()
    try:
        return run(parse(sys.argv[1:] if argv is None else argv, contract), tag, contract)
    except Failure as failure:
        sys.stdout.flush()
        text = str(failure)
        usage = failure.usage if failure.usage and re.search(r"arg\(s\)|flag|command", text) else None
        sys.stderr.write(f"{text}\n" + (f"\n{usage}\n" if usage else ""))
        return 1
    except UnicodeDecodeError:
        sys.stderr.write("decode error: yaml: invalid leading UTF-8 octet\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error.filename or ''}: {(error.strerror or str(error)).lower()}\n".removeprefix(": "))
        return 1
    except KeyboardInterrupt:
        return 1


if __name__ == "__main__":
    sys.exit(main())
