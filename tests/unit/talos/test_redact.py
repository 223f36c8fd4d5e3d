# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64

import pytest
from ansible_collections.motley.inference.plugins.module_utils.talos import redact

KEY = base64.b64encode(b"-----BEGIN ED25519 PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIPxx\n-----END ED25519 PRIVATE KEY-----\n").decode()
PEM_LINES = [
    "MHcCAQEEIOqzXUQp0Y3N8m5s2n3l4kQvYb0m1v9c7x2z3a4b5c6doAoGCCqGSM49",
    "AwEHoUQDQgAE9n1s2k3j4h5g6f7d8s9a0q1w2e3r4t5y6u7i8o9p0a1s2d3f4g5",
    "hJkLzXcVbN==",
]
SCHEMATIC = "bc668cd34c1b046652bf89b476b33178418e343d51d4e2e3e0b5335d4e40e7ad"


def _pem(indent: int, sign: str = "") -> str:
    pad = sign + " " * indent
    return "\n".join(f"{pad}{line}" for line in ["-----BEGIN EC PRIVATE KEY-----", *PEM_LINES, "-----END EC PRIVATE KEY-----"])


LEGACY = f"""machine:
    type: controlplane
    token: abc123.0123456789abcdef
    ca:
        crt: {KEY}
        key: {KEY}
    install:
        disk: /dev/nvme0n1
        image: factory.talos.dev/metal-installer/{SCHEMATIC}:v1.13.9
    kubelet:
        image: ghcr.io/siderolabs/kubelet:v1.36.3
cluster:
    id: {base64.b64encode(b"0" * 32).decode()}
    secret: {base64.b64encode(b"1" * 32).decode()}
    secretboxEncryptionSecret: {base64.b64encode(b"2" * 32).decode()}
    controlPlane:
        endpoint: https://10.0.0.20:6443
"""
DOCUMENTS = f"""---
apiVersion: v1alpha1
kind: KubeServiceAccountConfig
issuer:
    privateKey: |
{_pem(8)}
    issuerURL: https://10.0.0.20:6443
---
apiVersion: v1alpha1
kind: KubeAPIServerCAConfig
acceptedCAs:
    - |
{_pem(6)}
"""


@pytest.mark.parametrize("body", [["Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-256-CBC,8A6F01"], ["MHcCAQEEIOqzXUQp", "0Y3N8m5s2n3l4kQv", "Yb0m1v9c"]],
                         ids=["headers", "short lines"])
def test_nothing_between_begin_and_end_shows(body: list[str]) -> None:
    out = redact.redact("\n".join(["-----BEGIN RSA PRIVATE KEY-----", *body, "more", "-----END RSA PRIVATE KEY-----", "after: this"]))
    assert not [line for line in body if line in out] and "more" not in out
    assert out.endswith("after: this")


def _shows_nothing(text: str) -> bool:
    secrets = [KEY, "0123456789abcdef", *PEM_LINES, base64.b64encode(b"1" * 32).decode(), base64.b64encode(b"2" * 32).decode()]
    return not any(secret in text for secret in secrets)


def test_one_line_secrets_of_the_older_contracts() -> None:
    out = redact.redact(LEGACY)
    assert _shows_nothing(out)
    assert out.count(redact.GENERATED) == 6
    for kept in (SCHEMATIC, "/dev/nvme0n1", "https://10.0.0.20:6443", "kubelet:v1.36.3", "type: controlplane"):
        assert kept in out


def test_pem_blocks_of_the_documents() -> None:
    out = redact.redact(DOCUMENTS)
    assert _shows_nothing(out)
    assert "issuerURL: https://10.0.0.20:6443" in out
    assert "kind: KubeAPIServerCAConfig" in out
    assert "BEGIN" not in out


@pytest.mark.parametrize("sign", ["+", "-", " "])
def test_diffs(sign: str) -> None:
    diff = "--- a\n+++ b\n@@ -1,5 +1,5 @@\n" + "\n".join(sign + line for line in (LEGACY + DOCUMENTS).splitlines())
    out = redact.redact(diff)
    assert _shows_nothing(out)
    assert out.startswith("--- a\n+++ b\n@@ -1,5 +1,5 @@")
    assert f"{sign}        disk: /dev/nvme0n1" in out


@pytest.mark.parametrize("lines", [PEM_LINES[1:], PEM_LINES[2:], PEM_LINES[:1]], ids=["tail", "last line", "head"])
@pytest.mark.parametrize("sign", ["+", "-", " "])
def test_a_hunk_that_begins_inside_a_block(lines: list[str], sign: str) -> None:
    ends = "" if lines == PEM_LINES[:1] else f"\n{sign}        -----END EC PRIVATE KEY-----"
    out = redact.redact("@@ -9,3 +9,3 @@\n" + "\n".join(f"{sign}        {line}" for line in lines) + ends + "\n     issuerURL: x")
    assert _shows_nothing(out)
    assert "issuerURL: x" in out


def test_known_values_go_wherever_they_stand() -> None:
    out = redact.redact("error: user said hunter2-hunter2 here", secrets=["hunter2-hunter2"])
    assert out == f"error: user said {redact.GENERATED} here"


@pytest.mark.parametrize(
    "text",
    [
        "    - TS_AUTHKEY=tskey-hush",
        "+    - TS_AUTHKEY=tskey-hush",
        "password: tskey-hush",
        "  registryPassword: tskey-hush",
        "- TOKEN=tskey-hush x",
    ],
)
def test_secrets_that_an_operator_brings(text: str) -> None:
    assert "hush" not in redact.redact(text)


@pytest.mark.parametrize("text", ["key: 10", "id: 3", "auth: /etc/x", 'token: ""', "secret: {}", "name: nvidia_uvm", "a: b"])
def test_harmless_lines_stay(text: str) -> None:
    assert redact.redact(text) == text


def test_leaves_of_a_bundle() -> None:
    bundle = {
        "cluster": {"id": "abcdefgh1", "secret": "s" * 44},
        "certs": {"k8s": {"key": "-----BEGIN X-----\n" + "k" * 20 + "\n-----END X-----\n"}},
        "n": 5,
    }
    found = redact.leaves(bundle)
    assert "s" * 44 in found
    assert "k" * 20 in found
    assert "5" not in found
