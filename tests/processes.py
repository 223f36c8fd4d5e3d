"""Which processes of a run still live: also those that left its session, as Ansible's workers do."""

from __future__ import annotations

from pathlib import Path

# Set for the run; every process that it starts inherits it.
VARIABLE = "MOTLEY_TEST_RUN"


def living(mark: str) -> list[str]:
    """Command lines of processes whose environment names this run (zombies are dead)."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z" and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(f"{entry.name} " + (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            except OSError:
                continue
    return found
