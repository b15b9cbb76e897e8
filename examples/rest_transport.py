"""A transport of your own: a release over HTTP, with the standard library alone.

    python examples/rest_transport.py

Four hospitals poll a server for requests and post their replies: a private ROC curve, with two
queries and secure aggregation. On the way the server and one hospital are killed and started again,
and another hospital replies too late. Everything that decides is in ``release_stages`` and
``Node``; this file only carries bytes and says who sent them.
"""

# %%
from __future__ import annotations

import argparse
import json
import logging
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request as HTTPRequest
from urllib.request import urlopen

import torch
from torch import Tensor

from torchmetrics_fed import Coordinator, DistributedDP, FederatedAUROC, PrivacyLedger, Release
from torchmetrics_fed.aggregation.stage import Stage
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.exchange.stages import Replies, Requests, ask_release, release_stages
from torchmetrics_fed.metrics import evaluation_of, terms_of
from torchmetrics_fed.privacy.store import Store

SITES = ("ann", "ben", "cem", "dia")
LATE_SITE = "dia"
ROUND = "2026-11"
PRIVACY = DistributedDP(epsilon=1.0, min_clients=3)
START_SECONDS = 120.0
STAGE_SECONDS = 20.0
AWAY_SECONDS = 60.0
"""A site gives up when the server was away for this long."""
POLL_SECONDS = 0.1

REPLY = 200
NOTHING_YET = 204
UNKNOWN = 401
LATE = 409
ROUND_OVER = 410


def patients(site: str) -> tuple[Tensor, Tensor]:
    """The scores of each hospital, in a range of their own."""
    generator = torch.Generator().manual_seed(SITES.index(site))
    target = torch.randint(0, 2, (3000,), generator=generator)
    return (torch.randn(3000, generator=generator) + 1.5 * target).sigmoid(), target


# %% The server: one open stage, replies by authenticated sender, closed stages on disk
class Server:
    """Carries the stages of one release. A server that was killed goes on from its folder.

    Args:
        folder: for the coordinator's state, closed stages and the release.
        tokens: by site, the secret that authenticates it.
    """

    def __init__(self, folder: Path, tokens: dict[str, str]) -> None:
        self.folder = folder
        self.sites = {token: site for site, token in tokens.items()}
        self.is_over = False
        self.lock = threading.Condition()
        self.requests: Requests = {}
        self.replies: dict[str, bytes] = {}
        self.coordinator = self._resumed_coordinator()

    def run(self) -> Release:
        """Return the release, and let every site know that the round is over."""
        clients = sorted(self.coordinator.senders or SITES)
        log = logging.getLogger("rest")
        stages = release_stages(self.coordinator, clients, place=f"round {ROUND}", log=log)
        try:
            return ask_release(stages, self.send)
        finally:
            self.is_over = True

    def send(self, requests: Requests) -> Replies:
        """Carry one stage. A stage that was closed before a restart stays closed."""
        stage = next(iter(requests.values())).stage
        path = self.folder / f"{len(self.coordinator.sums) + 1}-{stage}.closed"
        if not path.exists():
            if stage.begins_query:  # the query is recorded before it is asked
                write(self.folder / "state", self.coordinator.to_bytes())
            is_first = stage is Stage.ADVERTISE and not self.coordinator.sums
            replies = self._collect(requests, START_SECONDS if is_first else STAGE_SECONDS)
            table = {site: reply.hex() for site, reply in replies.items()}
            write(path, json.dumps(table).encode())
        closed = json.loads(path.read_text())
        return {site: unpacked(bytes.fromhex(reply)) for site, reply in closed.items()}

    def request_to(self, site: str) -> bytes | None:
        """Return the request that a site has not replied to; None if there is none."""
        with self.lock:
            if site not in self.requests or site in self.replies:
                return None
            return self.requests[site].to_bytes()

    def receive(self, site: str, digest: str, reply: bytes) -> bool:
        """Take a reply, if it is to the open request. Otherwise it came too late."""
        with self.lock:
            request = self.requests.get(site)
            if request is None or request.digest.hex() != digest:
                return False
            self.replies[site] = reply
            self.lock.notify_all()
            return True

    def _collect(self, requests: Requests, seconds: float) -> dict[str, bytes]:
        """Open a stage, wait for its replies, and close it."""
        with self.lock:
            self.requests = requests
            self.replies = {}
            self.lock.wait_for(lambda: len(self.replies) == len(requests), seconds)
            self.requests = {}
            return self.replies

    def _resumed_coordinator(self) -> Coordinator:
        metric = FederatedAUROC(privacy=PRIVACY)
        path = self.folder / "state"
        if path.exists():
            return Coordinator.from_bytes(path.read_bytes(), metric)
        return Coordinator(metric, round=ROUND)


def handler_of(server: Server) -> type[BaseHTTPRequestHandler]:
    """Return the handler of HTTP requests: GET asks for work, POST brings a reply."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site = self._site()
            if site is None:
                self._send(UNKNOWN)
            elif server.is_over:
                self._send(ROUND_OVER)
            else:
                request = server.request_to(site)
                self._send(NOTHING_YET if request is None else REPLY, request or b"")

        def do_POST(self) -> None:
            site = self._site()
            reply = self.rfile.read(int(self.headers["Content-Length"]))
            if site is None:
                self._send(UNKNOWN)
                return
            is_taken = server.receive(site, self.headers["X-Request"], reply)
            self._send(REPLY if is_taken else LATE)

        def _site(self) -> str | None:
            """The sender, by its token: a name that a client claims proves nothing."""
            return server.sites.get(self.headers.get("Authorization", ""))

        def _send(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def write(path: Path, data: bytes) -> None:
    """Write a file whole: after a crash it is there or it is not."""
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(data)
    unfinished.replace(path)


def unpacked(reply: bytes) -> bytes | FederatedMetricError:
    """Return a reply, or the error of a site that refused."""
    if reply[:1] == b"+":
        return reply[1:]
    return ReleaseError(reply[1:].decode(errors="replace"))


def run_server(folder: Path, port: int, tokens: dict[str, str]) -> None:
    """Serve one round, and save its release."""
    server = Server(folder, tokens)
    http = ThreadingHTTPServer(("127.0.0.1", port), handler_of(server))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        release = server.run()
        release.save(folder / "release")
    finally:
        time.sleep(20 * POLL_SECONDS)  # every site asks once more, and hears that the round is over
        http.shutdown()


# %% A client: a node with a ledger and notes on its own disk
def run_client(folder: Path, port: int, site: str, token: str) -> None:
    """Reply until the round is over, and forget it. A client that was killed goes on."""
    ledger = PrivacyLedger(budget=3.0, path=folder / f"{site}.ledger")
    metric = FederatedAUROC(privacy=PRIVACY, ledger=ledger)
    metric.update(*patients(site))
    node = Node(site, terms_of(metric), Store(str(folder / f"{site}.notes")))
    url = f"http://127.0.0.1:{port}/"
    headers = {"Authorization": token}
    is_late = site == LATE_SITE
    last_heard = time.monotonic()
    while time.monotonic() < last_heard + AWAY_SECONDS:
        time.sleep(POLL_SECONDS)
        try:
            with urlopen(HTTPRequest(url, headers=headers)) as response:
                message = response.read()
            last_heard = time.monotonic()
        except HTTPError as error:
            if error.code != ROUND_OVER:
                raise
            break
        except (OSError, HTTPException):
            continue  # the server is being started again
        if message:
            request = Request.from_bytes(message)
            reply = replied(node, request, metric)
            if is_late and request.stage is Stage.UNMASK:
                time.sleep(STAGE_SECONDS + 1)
                is_late = False
            post(url, {**headers, "X-Request": request.digest.hex()}, reply, site)
            last_heard = time.monotonic()
    node.forget(ROUND)  # erases the notes, gives back what was not drawn


def replied(node: Node, request: Request, metric: FederatedAUROC) -> bytes:
    """Return the node's reply, or its refusal, which says nothing of the data."""
    try:
        return b"+" + node.reply(request, evaluation_of(metric))
    except FederatedMetricError as error:
        return b"-" + str(error).encode()


def post(url: str, headers: dict[str, str], reply: bytes, site: str) -> None:
    """Post a reply. If the server is away, the node repeats it when it is asked again."""
    try:
        urlopen(HTTPRequest(url, data=reply, headers=headers)).close()
    except HTTPError as error:
        if error.code != LATE:
            raise
        print(f"{site}: the reply came too late", flush=True)
    except (OSError, HTTPException):
        pass


# %% All of it on this machine, with two crashes
def run_all() -> None:
    """Start a server and its sites, kill some of them, and print what came out."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tokens = {site: secrets.token_hex(16) for site in SITES}
        (home / "tokens").write_text(json.dumps(tokens))
        port = 20000 + secrets.randbelow(20000)
        arguments = [str(home), str(port)]
        server = started("server", *arguments)
        sites = {site: started("client", *arguments, site) for site in SITES}
        wait_for(home / "1-share_keys.closed")
        server.kill()
        server.wait()
        server = started("server", *arguments)
        wait_for(home / "1-mask.closed")
        sites["ben"].kill()
        sites["ben"].wait()
        sites["ben"] = started("client", *arguments, "ben")
        for process in (server, *sites.values()):
            process.wait()
        release = Release.load(home / "release")
        print(f"shares of the queries: {[part.shares for part in release.sums]}")
        print(f"federated AUROC {float(FederatedAUROC.from_release(release).compute()):.4f}")
        pooled = FederatedAUROC()
        for site in SITES:
            pooled.update(*patients(site))
        print(f"pooled AUROC {float(pooled.compute()):.4f}")
        for site in SITES:
            print(f"{site}: {PrivacyLedger(path=home / f'{site}.ledger').spent()}")


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *arguments])


def wait_for(path: Path, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not come within {seconds:g} s.")
        time.sleep(POLL_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description="A release over HTTP.")
    parser.add_argument("role", nargs="?", choices=["server", "client"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("port", nargs="?", type=int)
    parser.add_argument("site", nargs="?")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    if options.role is None:
        run_all()
        return
    tokens = json.loads((options.folder / "tokens").read_text())
    if options.role == "server":
        run_server(options.folder, options.port, tokens)
    else:
        run_client(options.folder, options.port, options.site, tokens[options.site])


if __name__ == "__main__":
    main()
