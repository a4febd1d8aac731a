"""A federation on this machine: a SuperLink, SuperNodes, and `flwr run`, on free ports."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.credentials import Credentials
from deploy.processes import BIN, Processes, descendants, free_port, kill
from fedapp.config.settings import Scalar

ROOT = Path(__file__).parents[1]
START_SECONDS, RUN_SECONDS = 120.0, 600.0

READY = "Uvicorn running on"
"""What a SuperLink logs when it answers."""


def environment(home: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment in which Flower keeps to `home` and to this machine."""
    return {
        **base,
        "PATH": f"{BIN}{os.pathsep}{base.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_ADDRESS": "local",
        "PYTHONUNBUFFERED": "1",
    }


def connection(address: str, credentials: Credentials | None) -> str:
    """Return the entry of Flower's config.toml that names this SuperLink `here`."""
    trust = (
        f"root-certificates = {json.dumps(str(credentials.ca))}"
        if credentials
        else "insecure = true"
    )
    return f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\n{trust}\n'


class Federation(Processes):
    """A SuperLink and what is started beside it; with credentials, TLS and authentication are on.

    Everything lies in ``folder``, and `stop` ends everything.
    """

    def __init__(
        self,
        folder: Path,
        *,
        simulation: bool = False,
        credentials: Credentials | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(folder, environment(folder / "flwr"))
        self.simulation, self.credentials, self.host = simulation, credentials, host
        self.port = free_port()
        (folder / "flwr").mkdir(parents=True)
        entry = connection(self.address, credentials)
        (folder / "flwr" / "config.toml").write_text(entry)

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{self.host}:{self.port}"

    # ------------------------------------------------------------------ the SuperLink

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again with what its database holds, and wait for it."""
        listen = "127.0.0.1" if self.host == "127.0.0.1" else "0.0.0.0"  # noqa: S104
        command = ["flower-superlink", "--host", listen, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.credentials:
            command += ["--ssl-ca-certfile", str(self.credentials.ca)]
            command += ["--ssl-certfile", str(self.credentials.certificate)]
            command += ["--ssl-keyfile", str(self.credentials.key)]
            command += ["--enable-supernode-auth", "--database", str(self.folder / "superlink.db")]
        else:
            command += ["--insecure"]
        before = self.log("superlink").count(READY)
        self.superlink = self.start("superlink", *command, *["--simulation"] * self.simulation)
        end = time.monotonic() + START_SECONDS
        while self.log("superlink").count(READY) == before:
            if time.monotonic() > end or self.superlink.poll() is not None:
                raise RuntimeError(f"the SuperLink did not start:\n{self.logs()}")
            time.sleep(0.2)

    def kill_server_app(self) -> None:
        """Kill the process in which the ServerApp runs, as `kill -9` does."""
        rows = descendants(self.superlink.pid).items()
        names = ("flwr-simulation", "flwr-serverapp")
        kill({pid: row for pid, row in rows if any(name in row.command for name in names)})

    # ------------------------------------------------------------------ SuperNodes

    def register(self, name: str) -> None:
        """Tell the SuperLink the public key of the SuperNode ``name``."""
        if self.credentials is None:
            raise RuntimeError("a federation without credentials knows no keys")
        key = str(self.credentials.node_public_key(name))
        command = ["flwr", "supernode", "register", key, "here", "--name", name]
        if self.start(f"register-{name}", *command).wait(START_SECONDS):
            raise RuntimeError(f"{name} was not registered:\n{self.log(f'register-{name}')}")

    def credentials_of(self, name: str) -> Path | None:
        """Return the folder of a SuperNode's key and of the authority's certificate, if there are any."""
        return self.credentials.node_key(name).parent if self.credentials else None

    def start_node(
        self, name: str, variables: Mapping[str, str] | None = None, **node_config: Scalar
    ) -> subprocess.Popen[bytes]:
        """Start the SuperNode ``name``; its node-config has underscores for hyphens."""
        options = ["--insecure"]
        if held := self.credentials_of(name):
            options = ["--root-certificates", str(held / "ca.crt")]
            options += ["--auth-supernode-private-key", str(held / "key")]
        return self.start_supernode(name, *options, variables=variables, **node_config)

    def start_supernode(
        self,
        name: str,
        *options: str,
        variables: Mapping[str, str] | None = None,
        **node_config: Scalar,
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode that connects to this SuperLink with options of its own."""
        pairs = (f"{k.replace('_', '-')}={json.dumps(v)}" for k, v in node_config.items())
        configured = ["--node-config", " ".join(pairs)] if node_config else []
        places = ["--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port())]
        command = ["flower-supernode", *places, *options, *configured]
        return self.start(name, *command, variables=variables)

    # ------------------------------------------------------------------ runs

    def run(
        self,
        settings: Mapping[str, Scalar],
        name: str,
        federation_config: str = "",
        app: Path = ROOT,
    ) -> Path:
        """Run an app to its end, its log in `<name>.log`, and return the run's folder.

        A run of a name is done once: tests that look at the same run share it.
        """
        folder = self.folder / name
        if not (folder / "summary.json").exists():
            file = self.write_settings(settings, name)
            self.wait_for(self.begin(file, name, federation_config, app), name)
        return folder

    def write_settings(self, settings: Mapping[str, Scalar], name: str) -> Path:
        """Write the settings of a run in the folder `<name>` as a --run-config file."""
        values = {"run-dir": str(self.folder / name), **settings}
        path = self.folder / f"{name}.toml"
        path.write_text("".join(f"{key} = {json.dumps(v)}\n" for key, v in values.items()))
        return path

    def begin(
        self, settings: Path, name: str, federation_config: str = "", app: Path = ROOT
    ) -> subprocess.Popen[bytes]:
        """Begin a run of an app with a --run-config file."""
        chosen = ["--federation-config", federation_config] if federation_config else []
        command = ["flwr", "run", str(app), "here", "--run-config", str(settings), "--stream"]
        return self.start(name, *command, *chosen)

    def wait_for(
        self, process: subprocess.Popen[bytes], name: str, seconds: float | None = RUN_SECONDS
    ) -> None:
        """Wait for the end of the run in the folder `<name>`, at most for so many seconds.

        Raises
        ------
        RuntimeError
            It ended without a summary; the message holds all logs.
        """
        process.wait(seconds)
        if not (self.folder / name / "summary.json").exists():
            raise RuntimeError(f"the run {name!r} did not end well:\n{self.logs()}")


@contextlib.contextmanager
def federation(
    folder: Path, *, simulation: bool = False, credentials: Credentials | None = None
) -> Iterator[Federation]:
    """Start a SuperLink in `folder` and stop everything at the end, also after a failure."""
    started = Federation(folder, simulation=simulation, credentials=credentials)
    try:
        started.start_superlink()
        yield started
    finally:
        started.stop()
