"""Docker Compose, systemd: who reaches the SuperLink; what depends on it starts once it answers."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.credentials import make_credentials
from deploy.federation import Federation

ROOT = Path(__file__).resolve().parent.parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())[
    "services"
]


def test_nobody_on_other_machines_reaches_the_superlink_as_the_files_stand() -> None:
    """Who does may start runs."""
    unit = (ROOT / "deploy/systemd/fedapp-superlink.service").read_text()
    (command,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)
    options = dict(itertools.pairwise(shlex.split(command)))
    assert options["--host"] == "127.0.0.1"
    assert SERVICES["superlink"]["ports"] == ["127.0.0.1:8000:8000"]


def test_all_others_wait_until_the_superlink_is_healthy() -> None:
    superlink, *others = SERVICES
    assert superlink == "superlink"
    assert "healthcheck" in SERVICES[superlink]
    for name in others:
        assert SERVICES[name]["depends_on"] == {superlink: {"condition": "service_healthy"}}


def test_the_health_check_asks_where_the_superlink_listens_and_trusts_its_authority() -> None:
    given = SERVICES["superlink"]["command"].split()
    options = dict(itertools.pairwise(given))
    kind, python, flag, code = SERVICES["superlink"]["healthcheck"]["test"]
    assert (kind, python, flag) == ("CMD", "python", "-c")
    assert f"https://127.0.0.1:{options['--port']}/health" in code
    assert f'cafile="{options["--ssl-ca-certfile"]}"' in code


@pytest.mark.process
def test_the_health_check_passes_while_a_superlink_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the proxy that the container's environment may name: the SuperLink is in the container."""
    credentials = make_credentials(tmp_path / "credentials", ["superlink"], [])
    started = Federation(tmp_path, credentials=credentials)
    code = SERVICES["superlink"]["healthcheck"]["test"][-1]
    code = code.replace("/credentials/ca.crt", str(credentials.ca)).replace(
        "127.0.0.1:8000", started.address
    )

    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")

    def is_healthy() -> bool:
        return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0

    assert not is_healthy()
    try:
        started.start_superlink()
        assert is_healthy()
    finally:
        started.stop()
    assert not is_healthy()
