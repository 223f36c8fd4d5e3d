# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands without a node: what is written, what is refused and how it is worded."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from motley_lab.talos import generate, goyaml, schema

from .conftest import Run

ONE = "1 error occurred:\n\t* "
URL = "https://10.0.0.20:6443"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "secrets.yaml"
    path.write_text(goyaml.dump(generate.secrets_bundle()))
    return path


def _config(ctl: Run, bundle: Path, contract: str, role: str = "controlplane", *more: str) -> str:
    done = ctl("gen", "config", "home", URL, "--with-secrets", str(bundle), "--talos-version", f"v{contract}", "--install-disk",
               "/dev/nvme0n1", "-t", role, "-o", "-", *more, version=contract)  # fmt: skip
    assert done.rc == 0, done.err
    return done.out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": "off"}, 'a: "off"\n'), ({"a": "12"}, 'a: "12"\n'), ({"a": "1e3"}, 'a: "1e3"\n'), ({"a": ""}, 'a: ""\n'),
        ({"a": "key: value"}, "a: 'key: value'\n"), ({"a": "- x"}, "a: '- x'\n"), ({"a": "2026-01-02"}, 'a: "2026-01-02"\n'),
        ({"a": "tab\there"}, 'a: "tab\\there"\n'), ({"a": None, "b": [], "c": {}}, "a: null\nb: []\nc: {}\n"),
        ({"a": [{"b": 1, "c": {"d": [2]}}]}, "a:\n    - b: 1\n      c:\n        d:\n            - 2\n"),
        ({"a": ["x\ny\n"]}, "a:\n    - |\n      x\n      y\n"), ({"a": "é"}, "a: é\n"),
    ],
)  # fmt: skip
def test_yaml_is_written_as_go_writes_it(value: dict[str, object], text: str) -> None:
    assert goyaml.dump(value) == text
    assert goyaml.load(text) == value


def test_maps_are_sorted_by_number() -> None:
    assert list(goyaml.ordered({"a10": 1, "a9": 2, "b": 3, "B": 4})) == ["B", "a9", "a10", "b"]


@pytest.mark.parametrize("contract", ["1.13", "1.14"])
@pytest.mark.parametrize("role", ["controlplane", "worker"])
def test_generated_configurations_are_valid_and_complete(ctl: Run, bundle: Path, tmp_path: Path, contract: str, role: str) -> None:
    text = _config(ctl, bundle, contract, role)
    kinds = [document.get("kind") for document in yaml.safe_load_all(text)]
    assert len(kinds) == {"1.13": {"controlplane": 2, "worker": 2}, "1.14": {"controlplane": 29, "worker": 15}}[contract][role]
    (tmp_path / "c.yaml").write_text(text)
    assert ctl("validate", "-c", "c.yaml", "-m", "metal", "--strict", version=contract) == (0, "c.yaml is valid for metal mode\n", "")
    again = ctl("machineconfig", "patch", "c.yaml", "-p", '{"debug": false}', version=contract)
    assert again.out == text


def test_secrets_are_used_and_files_are_not_overwritten(ctl: Run, bundle: Path, tmp_path: Path) -> None:
    kept = yaml.safe_load(bundle.read_text())
    machine = yaml.safe_load(_config(ctl, bundle, "1.13").split("---")[0])
    assert machine["cluster"]["secret"] == kept["cluster"]["secret"]
    assert machine["machine"]["ca"] == kept["certs"]["os"]
    assert ctl("gen", "secrets", "-o", "s.yaml").rc == 0
    assert (tmp_path / "s.yaml").stat().st_mode & 0o777 == 0o600
    assert ctl("gen", "secrets", "-o", "s.yaml") == (1, "", 'file "s.yaml" already exists, use --force to overwrite\n')
    first = ctl("gen", "config", "home", URL, "--with-secrets", "s.yaml", "-o", "out")
    assert first.err == "generating PKI and tokens\n" + "".join(f"Created out/{n}\n" for n in ("controlplane.yaml", "worker.yaml", "talosconfig"))
    second = ctl("gen", "config", "home", URL, "--with-secrets", "s.yaml", "-o", "out")
    assert second == (1, "", 'generating PKI and tokens\nfile "out/controlplane.yaml" already exists, use --force to overwrite\n')


@pytest.mark.parametrize(
    ("contract", "patch", "error"),
    [
        ("1.13", "machine: {install: {extraKernelArgs: [a]}}",
         ONE + "v1alpha1.Config: " + ONE + "install.extraKernelArgs and install.grubUseUKICmdline can't be used together\n\n\n\n\n"),
        ("1.13", "machine: {install: {disk: {$patch: delete}}}",
         ONE + "v1alpha1.Config: " + ONE + "either install disk or diskSelector should be defined\n\n\n\n\n"),
        ("1.13", "machine: {network: {hostname: x}}", ONE + "static hostname is already set in v1alpha1 config\n\n\n"),
        ("1.13", "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x",
         ONE + "HostnameConfig: 'auto' and 'hostname' cannot be set at the same time\n\n\n"),
        ("1.14", "machine: {install: {disk: /dev/sda}}",
         ONE + "UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)\n\n\n"),
        ("1.14", "machine: {nodeLabels: {a: b}}", ONE + ".machine.nodeLabels is already set in v1alpha1 config\n\n\n"),
        ("1.14", "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: a_b\nvolumeType: directory",
         ONE + "UserVolumeConfig/a_b: name can only contain lowercase and uppercase ASCII letters, digits, and hyphens\n\n\n"),
        ("1.14", 'apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: a\nprovisioning: {diskSelector: {match: disk.sise > 1}, minSize: 1GB}',
         ONE + "UserVolumeConfig/a: disk selector is invalid: ERROR: <input>:1:5: undefined field 'sise'\n | disk.sise > 1\n | ....^\n\n\n"),
    ],
)  # fmt: skip
def test_what_validate_refuses(ctl: Run, bundle: Path, tmp_path: Path, contract: str, patch: str, error: str) -> None:
    (tmp_path / "base.yaml").write_text(_config(ctl, bundle, contract))
    (tmp_path / "p.yaml").write_text(patch)
    assert ctl("machineconfig", "patch", "base.yaml", "-p", "@p.yaml", "-o", "c.yaml", version=contract) == (0, "", "")
    assert ctl("validate", "-c", "c.yaml", "-m", "metal", version=contract) == (1, "", error)


@pytest.mark.parametrize(
    ("contract", "extra", "error"),
    [
        ("1.13", "---\napiVersion: v1alpha1\nkind: KernelModuleConfig\nname: nvidia\n",
         'error decoding document v1alpha1/KernelModuleConfig/nvidia (line {}): "KernelModuleConfig" "v1alpha1": not registered\n'),
        ("1.14", "---\napiVersion: v1alpha1\nkind: KernelModuleConfig\nname: nvidia\nargs: [a]\n",
         "error decoding document v1alpha1/KernelModuleConfig/nvidia (line {}): unknown keys found during decoding:\nargs: [a]\n\n"),
        ("1.13", "---\napiVersion: v1alpha1\nkind: HostnameConfig\n", "duplicate document v1alpha1/HostnameConfig/ is not allowed (line {})\n"),
        ("1.13", "---\nkind: HostnameConfig\n", "error decoding document /HostnameConfig/ (line {}): missing apiVersion\n"),
        ("1.13", "---\napiVersion: v1alpha1\nkind: LinkConfig\nname: x\nmtu: big\n",
         "error decoding document v1alpha1/LinkConfig/x (line {}): error decoding LinkConfig to *network.LinkConfigV1Alpha1: "
         "yaml: construct errors:\n  line {}: cannot construct !!str `big` into uint32\n"),
    ],
)  # fmt: skip
def test_what_the_decoder_refuses(ctl: Run, bundle: Path, tmp_path: Path, contract: str, extra: str, error: str) -> None:
    text = _config(ctl, bundle, contract)
    (tmp_path / "c.yaml").write_text(text + extra)
    first = text.count("\n") + 2
    done = ctl("validate", "-c", "c.yaml", "-m", "metal", version=contract)
    assert (done.rc, done.err) == (1, error.format(first, first + 3))


@pytest.mark.parametrize(
    ("patches", "path", "value"),
    [
        (["machine: {certSANs: [a]}", "machine: {certSANs: [a]}"], "machine.certSANs", ["a", "a"]),
        (["cluster: {network: {podSubnets: [10.1.0.0/16]}}"], "cluster.network.podSubnets", ["10.1.0.0/16"]),
        (["machine: {sysctls: {a: 10}}"], "machine.sysctls", {"a": "10"}),
        (["machine: {install: {wipe: {$patch: delete}}}"], "machine.install.wipe", None),
        (["cluster: {apiServer: {admissionControl: [{name: PodSecurity, $patch: delete}]}}"], "cluster.apiServer.admissionControl", None),
    ],
)
def test_patches_append_replace_and_delete(ctl: Run, bundle: Path, tmp_path: Path, patches: list[str], path: str, value: object) -> None:
    (tmp_path / "base.yaml").write_text(_config(ctl, bundle, "1.13"))
    done = ctl("machineconfig", "patch", "base.yaml", *[part for patch in patches for part in ("-p", patch)], version="1.13")
    found = yaml.safe_load(done.out.split("\n---\n")[0])
    for key in path.split("."):
        found = found.get(key)
    assert found == value


@pytest.mark.parametrize("patch", ["", '[{"op": "add", "path": "/a", "value": 1}]', "- op: add\n  path: /a\n  value: 1\n"])
def test_json_patches_are_refused(ctl: Run, bundle: Path, tmp_path: Path, patch: str) -> None:
    (tmp_path / "base.yaml").write_text(_config(ctl, bundle, "1.13"))
    (tmp_path / "p.yaml").write_text(patch)
    done = ctl("machineconfig", "patch", "base.yaml", "-p", "@p.yaml")
    assert done == (1, "", "JSON6902 patches are not supported for multi-document machine configuration\n")


@pytest.mark.parametrize(
    ("argv", "first"),
    [
        (["frob"], 'unknown command "frob" for "talosctl"'), (["validate", "--foo"], "unknown flag: --foo"),
        (["validate", "-c", "x"], 'required flag(s) "mode" not set'), (["gen", "config", "a"], "accepts 2 arg(s), received 1"),
        (["get"], "accepts between 1 and 2 arg(s), received 0"),
        (["reboot", "-m", "warm"], 'invalid argument "warm" for "-m, --mode" flag: must be one of [default force powercycle]'),
        (["apply-config", "-m", "x"], 'invalid argument "x" for "-m, --mode" flag: possible options are: auto, no-reboot, reboot, staged, try'),
        (["version", "extra"], 'unknown command "extra" for "talosctl version"'),
    ],
)  # fmt: skip
def test_usage_errors_name_what_is_wrong_and_show_the_usage(ctl: Run, argv: list[str], first: str) -> None:
    done = ctl(*argv)
    assert done.rc == 1
    assert done.err.split("\n\n")[0] == first
    assert "Usage:" in done.err


def test_flags_follow_the_release(ctl: Run) -> None:
    assert ctl("reset", "--insecure", version="1.14").err.startswith("unknown flag: --insecure")
    assert not ctl("reset", "--insecure", version="1.13").err.startswith("unknown flag")
    assert ctl("version", "--client", "--short", version="1.13").out == "Client:\nTalos v1.13.9\n"


@pytest.mark.parametrize("contract", ["1.13", "1.14"])
def test_every_document_of_the_table_has_a_shape(contract: str) -> None:
    kinds = [line.split()[0] for line in (schema.TABLES / "documents.txt").read_text().splitlines() if " = " not in line]
    shapes = [schema.shape(kind, contract) for kind in kinds]
    assert sum(shape is not None for shape in shapes) >= {"1.13": 48, "1.14": 94}[contract]
    assert schema.shape("KernelModuleConfig", "1.13") is None
