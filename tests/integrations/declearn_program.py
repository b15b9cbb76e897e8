"""A declearn server or client: `python -m tests.integrations.declearn_program server|NAME`.

Its settings are in the environment. The server leaves its result in a file. Clients' keys are made
from their names, which is for tests only.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from declearn.communication import build_client, build_server
from declearn.dataset import InMemoryDataset
from declearn.main import FederatedClient, FederatedServer
from declearn.model.torch import TorchModel
from declearn.secagg import parse_secagg_config_client, parse_secagg_config_server
from torch import Tensor

from torchmetrics_fed import DistributedDP, FederatedROC, LocalDP, PrivacyLedger
from torchmetrics_fed.integrations.declearn import ShareMetric, ShareState

NAMES = ("ann", "ben", "cem")
SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "other bins": {"quantiles": 256},
    "secure": {"secure": True},
    "distributed": {"privacy": DistributedDP(2.0, min_clients=len(NAMES))},
    "too many": {"privacy": DistributedDP(2.0, min_clients=len(NAMES) + 1)},
    "trusted": {"privacy": DistributedDP(2.0, min_clients=len(NAMES), trusted_aggregator=True)},
    "local": {"privacy": LocalDP(2.0)},
}


def setting(name: str, default: str = "") -> str:
    return os.environ.get(f"DECLEARN_{name}", default)


class Curves(ShareMetric):
    name = "curves of this program"

    def build(self, ledger: PrivacyLedger | None) -> FederatedROC:
        role = "" if len(sys.argv) < 2 else sys.argv[1]
        name = setting(f"SETTING_{role}") or setting("SETTING", "exact")
        return FederatedROC(ledger=ledger, **SETTINGS[name])

    def get_states(self) -> ShareState:
        if setting("DIES") == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get_states()


def examples(name: str, number: int = 300) -> tuple[Tensor, Tensor]:
    """Return a client's features and targets. The first client has negatives only."""
    generator = torch.Generator().manual_seed(NAMES.index(name))
    target = torch.randint(0, 2, (number, 1), generator=generator).float()
    if name == NAMES[0]:
        target = torch.zeros_like(target)
    features = torch.randn(number, 2, generator=generator) + target * torch.tensor([1.5, -0.5])
    return features, target


def key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def serve(folder: Path) -> None:
    """Train and evaluate with all clients, and leave releases, error and result in the folder."""
    layer = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(layer.weight, 0.1)
    torch.nn.init.zeros_(layer.bias)
    model = TorchModel(torch.nn.Sequential(layer, torch.nn.Sigmoid()), torch.nn.BCELoss())
    curves = Curves()
    secagg = None
    if setting("SECAGG"):
        secagg = parse_secagg_config_server(
            setting("SECAGG"), bitsize=int(setting("BITSIZE", "64"))
        )
    checkpoint = None
    if setting("CHECKPOINT"):
        checkpoint = str(folder / "checkpoint")
    network = build_server(
        protocol=setting("PROTOCOL", "websockets"),
        host="127.0.0.1",
        port=int(setting("PORT")),
    )
    server = FederatedServer(
        model,
        network,
        {"client_opt": 0.05, "aggregator": "averaging"},
        metrics=[curves],
        secagg=secagg,
        checkpoint=checkpoint,
    )
    error = ""
    try:
        server.run(
            {
                "rounds": int(setting("ROUNDS", "1")),
                "register": {"min_clients": len(NAMES), "max_clients": len(NAMES), "timeout": 100},
                "training": {"batch_size": 100},
                "evaluate": {"batch_size": 70},
            }
        )
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    coefficients = server.model.get_weights().coefs.values()
    weights = [torch.as_tensor(values).tolist() for values in coefficients]
    for number, release in enumerate(curves.releases):
        release.save(folder / f"{number}.release")
    result = {"error": error, "weights": weights, **curves.get_result()}
    (folder / "server.json").write_text(json.dumps(result))


def join(name: str, folder: Path) -> None:
    """Take part as one client, with a ledger in the folder."""
    features, target = examples(name)
    secagg = None
    if setting("SECAGG"):
        trusted = [key(peer).public_key() for peer in NAMES if peer != name]
        secagg = parse_secagg_config_client(
            setting("SECAGG"), id_keys={"prv_key": key(name), "trusted": trusted}
        )
    protocol = setting("PROTOCOL", "websockets")
    address = f"127.0.0.1:{setting('PORT')}"
    if protocol == "websockets":
        address = f"ws://{address}"
    client = FederatedClient(
        build_client(protocol=protocol, server_uri=address, name=name),
        InMemoryDataset(features.numpy(), target.numpy()),
        secagg=secagg,
        verbose=False,
    )
    Curves.client = client
    Curves.ledger = PrivacyLedger(budget=float(setting("BUDGET", "100")), path=folder / name)
    client.run()


def main() -> None:
    folder = Path(setting("FOLDER"))
    if sys.argv[1] == "server":
        serve(folder)
    else:
        join(sys.argv[1], folder)


if __name__ == "__main__":
    main()
