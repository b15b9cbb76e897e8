"""Runs the app on this machine: in Flower's simulation, or with SuperLink and SuperNodes.

    python examples/flower_app/run.py
    python examples/flower_app/run.py --deployment clients=5 epsilon=4.0

All processes talk over the loopback interface. Settings such as `epsilon=4.0` are passed on as run
configuration; `pyproject.toml` lists them.
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
    """Return ports that are not in use."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


@contextmanager
def process(name: str, *arguments: str, env: dict[str, str], log: Path) -> Iterator[int]:
    """Run a program in the background and yield its process group. At the end, stop the group."""
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
    """Run the app and return its result; raise with the end of the logs if there is none.

    Args:
        deployment: a SuperLink and SuperNodes, not the simulation.
        out: folder for the figure, the result and the logs; notes and ledgers of the nodes are in
            its subfolder `home`.
        clients: the number of clients.
        limit: seconds that the run may take.
        keep_ledgers: whether the nodes keep the ledgers of the run before, as they must with real
            data.
        during: called in a thread beside the run, with the process group of each SuperNode.
        config: the run configuration.
    """
    out = out.resolve()
    home = out / "home"
    if not keep_ledgers:  # the data is synthetic, so every run may begin with an unspent budget
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    environment = flower_environment(home)
    superlink_port, *node_ports = free_ports(1 + clients)
    address = f"127.0.0.1:{superlink_port}"
    connection = f'[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection)
    with ExitStack() as stack:
        link = ["--insecure", "--host", "127.0.0.1", "--port", str(superlink_port)]
        if not deployment:
            link.append("--simulation")
        log = out / "superlink.log"
        stack.enter_context(process("flower-superlink", *link, env=environment, log=log))
        wait_for(superlink_port)
        groups = {}
        if deployment:
            for client, port in enumerate(node_ports):
                node = ["--insecure", "--superlink", address, "--port", str(port)]
                node += ["--node-config", f"partition-id={client} num-partitions={clients}"]
                log = out / f"supernode-{client}.log"
                groups[client] = stack.enter_context(
                    process("flower-supernode", *node, env=environment, log=log)
                )
        if during is not None:
            threading.Thread(target=during, args=(groups,), daemon=True).start()
        settings = {"clients": clients, "out": str(out), **config}
        command = flwr_command(settings, clients, deployment)
        return run_app(command, environment, out, limit)


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of all processes: offline, with their files in a folder."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }


def flwr_command(settings: dict[str, Any], clients: int, deployment: bool) -> list[str]:
    """Return the command that runs the app with these settings."""
    run_config = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    command = [str(BIN / "flwr"), "run", str(APP), "here", "--stream", "--run-config", run_config]
    if not deployment:
        federation = f"num-supernodes={clients} client-resources-num-cpus=1"
        command += ["--federation-config", federation]
    return command


def run_app(
    command: list[str], environment: dict[str, str], out: Path, limit: float
) -> dict[str, Any]:
    """Run the app to its end and return its result."""
    path = out / "flower_app.json"
    path.unlink(missing_ok=True)
    # `flwr run` exits with 0 even if the run failed: only the result tells
    finished = subprocess.run(
        command,
        env=environment,
        timeout=limit,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    (out / "run.log").write_text(finished.stdout)
    if not path.exists():
        message = f"The app wrote no result.\n{finished.stdout[-6000:]}"
        for name in ("superlink.log", "supernode-0.log"):
            log = out / name
            if log.exists():
                message += f"\n== {name}\n{log.read_text()[-3000:]}"
        raise RuntimeError(message)
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def wait_for(port: int, seconds: float = 60) -> None:
    """Wait until a process listens on a port."""
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"No process listens on port {port}.")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--deployment", action="store_true", help="a SuperLink and SuperNodes, not the simulation"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/flower_app"), help="folder for all files of the run"
    )
    parser.add_argument(
        "--keep-ledgers", action="store_true", help="keep the budgets of the run before"
    )
    parser.add_argument("config", nargs="*", help="for instance epsilon=1.0")
    arguments = parser.parse_args()
    config = {}
    for item in arguments.config:
        name, value = item.split("=", 1)
        config[name] = json.loads(value)
    result = run(
        deployment=arguments.deployment,
        out=arguments.out,
        keep_ledgers=arguments.keep_ledgers,
        **config,
    )
    print(f"model {(arguments.out / 'final_model.pt').resolve()}")
    if "federated" in result:
        print(
            f"averaged local AUROC {result['averaged']:.6f}, "
            f"federated {result['federated']:.6f}, pooled {result['pooled']:.6f}"
        )
        print(f"figure {(arguments.out / 'flower_app.png').resolve()}")
    else:
        print(f"no curves in the last round; {(arguments.out / 'run.log').resolve()} says why")


if __name__ == "__main__":
    main()
