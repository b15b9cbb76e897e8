"""Runs the app on this machine: in Flower's simulation, or as a SuperLink with one SuperNode per hospital on loopback.

    python examples/flower_app/run.py
    python examples/flower_app/run.py --deployment epsilon=1.0 'plan="single"'

Offline. Whatever follows is passed on as run configuration; `pyproject.toml` says what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

APP = Path(__file__).parent
BIN = Path(sys.executable).parent


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def process(name: str, *arguments: str, env: dict[str, str], log: Path) -> Iterator[None]:
    """Run a program in the background, and end it with all that it has started."""
    with open(log, "w") as file:
        running = subprocess.Popen(
            [str(BIN / name), *arguments], env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def run(deployment: bool, out: Path, hospitals: int = 8, limit: float = 900, **config: Any) -> dict[str, Any]:
    """Run the app and return what it found; raise with the end of the logs if it found nothing."""
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        port, *node_ports = free_ports(1 + hospitals)
        address = f"127.0.0.1:{port}"
        (Path(home) / "config.toml").write_text(f'[superlink.here]\naddress = "{address}"\ninsecure = true\n')
        env = os.environ | {
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "HOSPITAL_LEDGERS": str(out.resolve()),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        logs = [out / "superlink.log"]
        link = ["--insecure", "--host", "127.0.0.1", "--port", str(port)] + ["--simulation"] * (not deployment)
        stack.enter_context(process("flower-superlink", *link, env=env, log=logs[0]))
        wait_for(port)
        for hospital in range(hospitals if deployment else 0):
            logs.append(out / f"supernode-{hospital}.log")
            node = ["--insecure", "--superlink", address, "--port", str(node_ports[hospital])]
            node += ["--node-config", f"partition-id={hospital} num-partitions={hospitals}"]
            stack.enter_context(process("flower-supernode", *node, env=env, log=logs[-1]))
        settings = {"hospitals": hospitals, "out": str(out.resolve()), **config}
        written = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        command = [str(BIN / "flwr"), "run", str(APP), "here", "--stream", "--run-config", written]
        if not deployment:
            command += ["--federation-config", f"num-supernodes={hospitals} client-resources-num-cpus=1"]
        result = out / "flower_app.json"
        result.unlink(missing_ok=True)
        # `flwr run` exits with 0 even where the run failed: what counts is the result
        ran = subprocess.run(
            command, env=env, timeout=limit, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        (out / "run.log").write_text(ran.stdout)
        if not result.exists():
            ends = "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in logs[:2])
            raise RuntimeError(f"The app wrote no result.\n{ran.stdout[-6000:]}\n{ends}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def wait_for(port: int, seconds: float = 60) -> None:
    """Return once somebody listens."""
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"Nobody listens on port {port}.")
        time.sleep(0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployment", action="store_true", help="a SuperLink and SuperNodes, not the simulation")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the figure, the result and the logs")
    parser.add_argument("config", nargs="*", help="for instance epsilon=1.0")
    arguments = parser.parse_args()
    given = (item.split("=", 1) for item in arguments.config)
    found = run(arguments.deployment, arguments.out, **{name: json.loads(value) for name, value in given})
    print("averaged local AUROC {averaged:.6f}, federated {federated:.6f}, pooled {pooled:.6f}".format(**found))
    print(f"figure: {arguments.out / 'flower_app.png'}")
