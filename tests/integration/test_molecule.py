"""The molecule scenario on fresh machines: converge, check, idempotence, verify."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.integration.conftest import BIN, Lab, free_port, own_name


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if not shutil.which("bwrap"):
        pytest.skip("the lab needs bubblewrap (apt-get install bubblewrap)")
    lab = Lab(own_name("mo"), free_port(), tmp_path_factory.mktemp("molecule"))
    lab.down()
    lab.up("--engine", "stub")
    yield lab
    lab.down()


def test_the_scenario_converges_changes_nothing_more_and_verifies(fresh: Lab) -> None:
    done = fresh.exec(str(BIN / "molecule"), "test", "--scenario-name", "lab", "--", "-e", f"motley_state_dir={fresh.state}",
                      env={"NO_COLOR": "1", "MOLECULE_EPHEMERAL_DIRECTORY": str(fresh.directory / "molecule")})
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    for action in ("syntax", "converge", "check", "idempotence", "verify"):
        assert f"{action}: Executed: Successful" in output, output[-2000:]
    assert json.loads((fresh.state / "verify.json").read_text())["passed"] is True
