"""The whole site as a CI system runs it (examples/ci/run.py): a private data directory, and artifacts that hold no secret."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import ROOT, Lab, free_port, own_name

DRIVER = ROOT / "examples" / "ci" / "run.py"


@pytest.fixture(scope="module")
def ci(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Fresh machines, and a private data directory whose state directory lies outside it."""
    if os.geteuid() != 0 or not shutil.which("bwrap"):
        pytest.skip("the lab needs root and bubblewrap (apt-get install bubblewrap)")
    lab = Lab(own_name("ru"), free_port(), tmp_path_factory.mktemp("runner"))
    shutil.copytree(ROOT / "inventories" / "lab", lab.directory / "data" / "inventory")
    (lab.directory / "data" / "env").mkdir()
    (lab.directory / "data" / "env" / "extravars").write_text(yaml.safe_dump({"motley_state_dir": str(lab.state)}))
    lab.down()
    lab.up("--engine", "stub")
    yield lab
    lab.down()


def every_text(document: object) -> list[str]:
    if isinstance(document, dict):
        return [text for item in document.values() for text in every_text(item)]
    if isinstance(document, list):
        return [text for item in document for text in every_text(item)]
    return [document] if isinstance(document, str) else []


def secrets_of(state: Path) -> set[str]:
    """Private values of a state directory, each line of a PEM block by itself; certificates and addresses are no secrets."""
    found = {(state / name).read_text().strip() for name in ("api_key", "ray_token")}
    bundle = yaml.safe_load((state / "secrets.yaml").read_text())
    found |= set(every_text(bundle["secrets"])) | set(every_text(bundle["trustdinfo"])) | {bundle["cluster"]["secret"]}
    found |= {text for cert in bundle["certs"].values() for name, text in cert.items() if name == "key"}
    found |= {context["key"] for context in yaml.safe_load((state / "talosconfig").read_text())["contexts"].values()}
    found |= {user["user"]["client-key-data"] for user in yaml.safe_load((state / "kubeconfig").read_text())["users"]}
    lines = {line.strip() for text in found for line in text.splitlines()}
    return {line for line in found | lines if len(line) >= 12 and "-----" not in line}


def leaks(lab: Lab, *outputs: str) -> list[str]:
    """Where a secret shows: files of the artifacts, and outputs by number."""
    texts = {path.relative_to(lab.directory).as_posix(): path.read_text(errors="replace")
             for path in (lab.directory / "data").rglob("*") if path.is_file()}
    assert any("job_events" in name for name in texts)
    texts |= {f"output {number}": text for number, text in enumerate(outputs)}
    secrets = secrets_of(lab.state)
    assert len(secrets) >= 10, "too few secrets were found to prove anything"
    # A line end is escaped in the JSON of an event, so a block is looked for by its lines.
    return [f"{name}: {secret[:4]}…" for name, text in texts.items() for secret in secrets if secret in text]


def test_the_whole_site_ends_verified_and_shows_no_secret(ci: Lab) -> None:
    done = ci.exec(sys.executable, str(DRIVER), str(ci.directory / "data"))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "motley.inference.site: successful" in done.stdout
    assert json.loads((ci.state / "verify.json").read_text())["passed"] is True
    assert leaks(ci, done.stdout, done.stderr) == []


def test_an_error_in_a_template_names_its_cause_and_shows_no_secret(ci: Lab) -> None:
    hosts = ci.directory / "data" / "inventory" / "hosts.yml"
    text = hosts.read_text()
    hosts.write_text(text.replace("motley_max_model_len: 512", 'motley_max_model_len: "{{ 512 + no_such_variable }}"'))
    try:
        done = ci.exec(sys.executable, str(DRIVER), str(ci.directory / "data"), env={"ANSIBLE_VERBOSITY": "3"})
    finally:
        hosts.write_text(text)
    assert done.returncode != 0
    assert "no_such_variable" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert leaks(ci, done.stdout, done.stderr) == []
