"""Runs the app on this machine: in Flower's simulation, or as a SuperLink with one SuperNode per client on loopback.

    python examples/flower_app/run.py
    python examples/flower_app/run.py --deployment clients=5 epsilon=4.0

Offline. Whatever follows is passed on as run configuration; `pyproject.toml` says what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
def process(name: str, *arguments: str, env: dict[str, str], log: Path) -> Iterator[int]:
    """Run a program in the background, give its process group, and end it with all that it has started."""
    with open(log, "w") as file:
        running = subprocess.Popen(
            [str(BIN / name), *arguments],
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield running.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGTERM)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def run(
    deployment: bool,
    out: Path,
    clients: int = 8,
    limit: float = 900,
    keep_ledgers: bool = False,
    during: Callable[[dict[int, int]], None] | None = None,
    **config: Any,
) -> dict[str, Any]:
    """Run the app and return what it found; raise with the end of the logs if it found nothing.

    Args:
        deployment: a SuperLink and SuperNodes, not the simulation.
        out: folder for the figure, the result, the logs, and below `home` for the nodes' notes and ledgers.
        clients: how many.
        limit: seconds that the run may take.
        keep_ledgers: whether the nodes go on with the ledgers of the run before, as they must with real data.
        during: called in a thread beside the run, with the process group of each client's SuperNode.
        config: the run configuration.
    """
    out.mkdir(parents=True, exist_ok=True)
    out, home = out.resolve(), out.resolve() / "home"
    if not keep_ledgers:  # the data is made, so that every run may begin with an unspent budget
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(exist_ok=True)
    with ExitStack() as stack:
        port, *node_ports = free_ports(1 + clients)
        address = f"127.0.0.1:{port}"
        (home / "config.toml").write_text(
            f'[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )
        env = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        logs = [out / "superlink.log"]
        link = ["--insecure", "--host", "127.0.0.1", "--port", str(port)] + ["--simulation"] * (
            not deployment
        )
        stack.enter_context(process("flower-superlink", *link, env=env, log=logs[0]))
        wait_for(port)
        groups = {}
        for client in range(clients if deployment else 0):
            logs.append(out / f"supernode-{client}.log")
            node = ["--insecure", "--superlink", address, "--port", str(node_ports[client])]
            node += ["--node-config", f"partition-id={client} num-partitions={clients}"]
            groups[client] = stack.enter_context(
                process("flower-supernode", *node, env=env, log=logs[-1])
            )
        settings = {"clients": clients, "out": str(out), **config}
        written = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        command = [str(BIN / "flwr"), "run", str(APP), "here", "--stream", "--run-config", written]
        if not deployment:
            command += [
                "--federation-config",
                f"num-supernodes={clients} client-resources-num-cpus=1",
            ]
        result = out / "flower_app.json"
        result.unlink(missing_ok=True)
        if during is not None:
            threading.Thread(target=during, args=(groups,), daemon=True).start()
        # `flwr run` exits with 0 even where the run failed: what counts is the result
        ran = subprocess.run(
            command,
            env=env,
            timeout=limit,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--deployment", action="store_true", help="a SuperLink and SuperNodes, not the simulation"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/flower_app"), help="folder for all that comes of it"
    )
    parser.add_argument(
        "--keep-ledgers", action="store_true", help="go on with the budgets of the run before"
    )
    parser.add_argument("config", nargs="*", help="for instance epsilon=1.0")
    arguments = parser.parse_args()
    given = (item.split("=", 1) for item in arguments.config)
    found = run(
        deployment=arguments.deployment,
        out=arguments.out,
        keep_ledgers=arguments.keep_ledgers,
        **{name: json.loads(value) for name, value in given},
    )
    print(f"model {(arguments.out / 'final_model.pt').resolve()}")
    if "federated" in found:
        print(
            "averaged local AUROC {averaged:.6f}, federated {federated:.6f}, pooled {pooled:.6f}".format(
                **found
            )
        )
        print(f"figure {(arguments.out / 'flower_app.png').resolve()}")
    else:
        print(f"no curves in the last round; {(arguments.out / 'run.log').resolve()} says why")
