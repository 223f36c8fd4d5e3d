# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.motley.inference.plugins.module_utils.talos import errors

CALLS = json.loads((Path(__file__).parent / "fixtures" / "calls.json").read_text())
_NESTED = re.compile(r"\d+ errors? occurred:\n\t\* (?:[\d.]+: )?(rpc error: .*?)\n\n\n", re.DOTALL)


def _flat(text: str) -> str:
    return _NESTED.sub(r"\1\n", text)


def _nested(text: str) -> str:
    if "1 error occurred" in text or "rpc error" not in text:
        return text
    head, _, tail = text.partition("rpc error")
    return f"{head}1 error occurred:\n\t* 10.0.0.10: rpc error{tail.rstrip()}\n\n\n"


@pytest.mark.parametrize("call", CALLS, ids=lambda item: item["id"])
def test_recorded_calls_have_their_class(call: dict[str, Any]) -> None:
    assert errors.classify(call["rc"], call["stderr"]).kind == call["kind"]


@pytest.mark.parametrize("call", CALLS, ids=lambda item: item["id"])
def test_the_class_does_not_depend_on_the_form_of_the_message(call: dict[str, Any]) -> None:
    forms = [_flat(call["stderr"]), _nested(call["stderr"]), call["stderr"].replace("127.0.0.", "10.20.30.")]
    assert {errors.classify(call["rc"], form).kind for form in forms} == {call["kind"]}


@pytest.mark.parametrize("call", [item for item in CALLS if item["rc"]], ids=lambda item: item["id"])
def test_no_failed_call_counts_as_done(call: dict[str, Any]) -> None:
    assert not errors.classify(call["rc"], call["stderr"]).ok


@pytest.mark.parametrize(
    ("rc", "stderr", "kind"),
    [
        (124, "no end after 30 s", "retry"),
        (127, "talosctl: command not found", "usage"),
        (1, "", "retry"),
        (0, "rpc error: code = Unavailable desc = x", "done"),
        (1, "rpc error: code = DeadlineExceeded desc = etcd member ac3f is not healthy; all members must be healthy", "fatal"),
        (1, "rpc error: code = DeadlineExceeded desc = context deadline exceeded", "retry"),
    ],
)
def test_ends_without_a_recording(rc: int, stderr: str, kind: str) -> None:
    assert errors.classify(rc, stderr).kind == kind


@pytest.mark.parametrize("text", ["write: broken pipe", "write: connection reset by peer"])
def test_texts_of_a_tls_refusal_are_marked(text: str) -> None:
    assert errors.classify(1, f"rpc error: code = Unavailable desc = write tcp 10.0.0.1:1->10.0.0.2:50000: {text}\n").ambiguous
    assert not errors.classify(1, "rpc error: code = Unavailable desc = connect: connection refused").ambiguous


def test_the_worst_of_several_counts() -> None:
    text = (
        "2 errors occurred:\n\t* 10.0.0.1: rpc error: code = Unavailable desc = connect: connection refused\n"
        "\t* 10.0.0.2: rpc error: code = InvalidArgument desc = bad\n\n"
    )
    assert errors.classify(1, text).kind == "fatal"
