# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from ansible_collections.motley.inference.plugins.module_utils.errors import MotleyError
from ansible_collections.motley.inference.plugins.plugin_utils.process import Done
from ansible_collections.motley.inference.plugins.plugin_utils.talosctl import Talosctl, TalosctlError, Target

CALLS = {item["id"]: item for item in json.loads((Path(__file__).parent / "fixtures" / "calls.json").read_text())}
ANSWERS = json.loads((Path(__file__).parent / "fixtures" / "answers.json").read_text())
SPARK = Target("spark-01", "10.0.0.10")
STATUS = ["get", "machinestatus", "--output", "json"]


def recorded(name: str) -> tuple[int, str, str]:
    """A recorded end: exit code, output, error output."""
    call = CALLS[name]
    return call["rc"], "", call["stderr"]


def answer(name: str) -> tuple[int, str, str]:
    objects = ANSWERS[name]
    return 0, objects if isinstance(objects, str) else "\n".join(json.dumps(item, indent=4) for item in objects), ""


class FakeRunner:
    """Plays recorded ends, in turn for calls with credentials and for calls without; the last one stays."""

    def __init__(self, secure: list[tuple[int, str, str]], insecure: list[tuple[int, str, str]] | None = None) -> None:
        self.ends = {False: secure, True: insecure or []}
        self.argv: list[list[str]] = []
        self.timeouts: list[float] = []

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
    ) -> Done:
        self.argv.append(list(argv))
        self.timeouts.append(timeout)
        ends = self.ends["--insecure" in argv]
        rc, out, err = ends.pop(0) if len(ends) > 1 else ends[0]
        return Done(tuple(argv), rc, out.encode(), err.encode(), 0.1)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "talosconfig"
    path.write_text("context: home\n")
    return path


def _client(runner: FakeRunner, config: Path | None) -> Talosctl:
    return Talosctl("talosctl", talosconfig=config, run=runner, sleep=lambda seconds: None)


def test_each_call_goes_to_one_node_itself_and_has_a_limit(config: Path) -> None:
    runner = FakeRunner([answer("get_systemdisk_json_two")])
    _client(runner, config).get(SPARK, "systemdisk")
    assert runner.argv == [
        [
            "talosctl",
            "--talosconfig",
            str(config),
            "--endpoints",
            "10.0.0.10",
            "--nodes",
            "10.0.0.10",
            "get",
            "systemdisk",
            "--output",
            "json",
        ]
    ]
    assert runner.timeouts[0] > 0


def test_without_credentials_no_talosconfig_is_named(config: Path) -> None:
    runner = FakeRunner([], [answer("maint_get_disks_json")])
    _client(runner, config).get(SPARK, "disks", insecure=True)
    assert runner.argv == [["talosctl", "--nodes", "10.0.0.10", "get", "disks", "--output", "json", "--insecure"]]


def test_a_missing_talosconfig_is_never_handed_to_talosctl(tmp_path: Path) -> None:
    runner = FakeRunner([answer("get_systemdisk_json_two")])
    with pytest.raises(MotleyError, match="no talosconfig"):
        _client(runner, tmp_path / "nothing").get(SPARK, "systemdisk")
    assert runner.argv == []


def test_a_text_that_a_tls_refusal_shares_is_tried_again(config: Path) -> None:
    runner = FakeRunner([recorded("expired_version"), recorded("expired_version"), answer("version_two")])
    assert _client(runner, config).version(SPARK).tag == "v1.13.9"
    assert len(runner.argv) == 3


@pytest.mark.parametrize("name", ["version_target_down", "apply_unknown_key", "bootstrap_early", "foreign_get"])
def test_clear_refusals_are_not_tried_again(config: Path, name: str) -> None:
    runner = FakeRunner([recorded(name)])
    with pytest.raises(TalosctlError) as caught:
        _client(runner, config).call(SPARK, ["get", "x"])
    assert len(runner.argv) == 1
    assert caught.value.outcome.kind == CALLS[name]["kind"]
    assert caught.value.node == "spark-01"
    assert caught.value.hint


def test_usage_text_is_left_out_of_messages(config: Path) -> None:
    with pytest.raises(TalosctlError) as caught:
        _client(FakeRunner([recorded("unknown_flag")]), config).call(SPARK, ["get", "links", "--nope"])
    assert "unknown flag: --nope" in caught.value.text()
    assert "Usage" not in caught.value.text()


def test_secrets_are_left_out_of_messages(config: Path) -> None:
    error = "error: diff:\n@@ -1 +1 @@\n+    token: abcdef.0123456789abcdef\n+    note: opensesame-1\n"
    client = Talosctl("talosctl", talosconfig=config, run=FakeRunner([(1, "", error)]), secrets=["opensesame-1"])
    with pytest.raises(TalosctlError) as caught:
        client.call(SPARK, ["apply-config"])
    assert "0123456789abcdef" not in caught.value.text()
    assert "opensesame" not in caught.value.text()


REFUSED, REQUIRED, RACE = "version_endpoint_down", "insecure_get_configured_single", "get_links_insecure_configured"


@pytest.mark.parametrize(
    ("secure", "insecure", "kind"),
    [
        ([answer("installed_booting")], [], "configured"),
        ([recorded("maint_secure_get")], [answer("maint_get_ms")], "maintenance"),
        ([recorded("foreign_get")], [recorded(REQUIRED)], "foreign"),
        ([recorded("expired_get")], [recorded(REQUIRED)], "expired"),
        ([recorded("expired_version"), recorded("expired_get")], [recorded(RACE)], "expired"),
        ([recorded(REFUSED)], [recorded(REFUSED)], "unreachable"),
        ([recorded("silent_get")], [recorded("silent_get")], "unreachable"),
        ([recorded("expired_version"), answer("installed_booting")], [recorded(RACE)], "configured"),
        ([recorded("maint_secure_get")], [recorded(REQUIRED)], "foreign"),
        ([recorded("maint_secure_get")], [recorded(RACE), recorded(REQUIRED)], "foreign"),
        ([recorded("maint_secure_get")], [recorded(RACE), answer("maint_get_ms")], "maintenance"),
        ([recorded("reset_get")], [recorded("reset_get")], "unreachable"),
    ],
    ids=["running", "maintenance", "other CA", "expired", "expired, unclear at first", "down", "silent", "unclear at first", "other cluster",
         "other cluster, unclear", "maintenance, unclear", "resets all"],
)  # fmt: skip
def test_state_of_a_node(config: Path, secure: list[tuple[int, str, str]], insecure: list[tuple[int, str, str]], kind: str) -> None:
    assert _client(FakeRunner(secure, insecure), config).probe(SPARK).kind == kind


@pytest.mark.parametrize(
    ("insecure", "kind"),
    [
        ([answer("maint_get_ms")], "maintenance"),
        ([recorded(REQUIRED)], "foreign"),
        ([recorded(RACE), recorded(RACE), recorded(REQUIRED)], "foreign"),
        ([recorded(REFUSED)], "unreachable"),
    ],
    ids=["maintenance", "configured by others", "configured by others, unclear", "down"],
)
def test_state_of_a_node_before_there_are_credentials(insecure: list[tuple[int, str, str]], kind: str) -> None:
    runner = FakeRunner([], insecure)
    assert _client(runner, None).probe(SPARK).kind == kind
    assert all("--insecure" in argv for argv in runner.argv)


def test_a_node_that_leaves_maintenance_between_two_calls_is_not_foreign(config: Path) -> None:
    runner = FakeRunner([recorded("maint_secure_get"), answer("installed_booting")], [recorded(REQUIRED)])
    assert _client(runner, config).probe(SPARK).kind == "configured"


def test_a_probe_only_reads(config: Path) -> None:
    runner = FakeRunner([recorded("maint_secure_get")], [answer("maint_get_ms")])
    _client(runner, config).probe(SPARK)
    assert all(argv[argv.index("get") : argv.index("get") + 2] == ["get", "machinestatus"] for argv in runner.argv)


def test_a_missing_talosctl_is_said_so(config: Path) -> None:
    with pytest.raises(MotleyError, match="not installed"):
        _client(FakeRunner([(127, "", "talosctl: command not found")]), config).probe(SPARK)


def test_offline_calls_name_no_node() -> None:
    runner = FakeRunner([(0, "", "generating PKI and tokens\n")])
    _client(runner, None).offline(["gen", "secrets", "--output-file", "x"])
    assert runner.argv == [["talosctl", "gen", "secrets", "--output-file", "x"]]
    with pytest.raises(TalosctlError):
        _client(FakeRunner([recorded("gen_config_unknown_patch")]), None).offline(["gen", "config"])
