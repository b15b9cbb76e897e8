"""A declearn server or client: `python -m tests.integrations.declearn_program server|NAME`, set by the environment.

What the server found is left in a file. Clients' keys are made from their names, which is for tests only.
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
        own = setting(f"SETTING_{sys.argv[1]}") if len(sys.argv) > 1 else ""
        return FederatedROC(ledger=ledger, **SETTINGS[own or setting("SETTING", "exact")])

    def get_states(self) -> ShareState:
        if setting("DIES") == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get_states()


def examples(name: str, number: int = 300) -> tuple[Tensor, Tensor]:
    """A client's features and targets; the first has one class only."""
    generator = torch.Generator().manual_seed(NAMES.index(name))
    target = torch.randint(0, 2, (number, 1), generator=generator).float() * (name != NAMES[0])
    features = torch.randn(number, 2, generator=generator) + target * torch.tensor([1.5, -0.5])
    return features, target


def key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def serve(folder: Path) -> None:
    layer = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(layer.weight, 0.1)
    torch.nn.init.zeros_(layer.bias)
    model = TorchModel(torch.nn.Sequential(layer, torch.nn.Sigmoid()), torch.nn.BCELoss())
    curves, kind = Curves(), setting("SECAGG")
    server = FederatedServer(
        model,
        build_server(
            protocol=setting("PROTOCOL", "websockets"), host="127.0.0.1", port=int(setting("PORT"))
        ),
        {"client_opt": 0.05, "aggregator": "averaging"},
        metrics=[curves],
        secagg=parse_secagg_config_server(kind, bitsize=int(setting("BITSIZE", "64")))
        if kind
        else None,
        checkpoint=str(folder / "checkpoint") if setting("CHECKPOINT") else None,
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
    weights = [
        torch.as_tensor(values).tolist() for values in server.model.get_weights().coefs.values()
    ]
    for number, release in enumerate(curves.releases):
        release.save(folder / f"{number}.release")
    (folder / "server.json").write_text(
        json.dumps({"error": error, "weights": weights, **curves.get_result()})
    )


def join(name: str, folder: Path) -> None:
    features, target = (part.numpy() for part in examples(name))
    kind, trusted = setting("SECAGG"), [key(other).public_key() for other in NAMES if other != name]
    protocol = setting("PROTOCOL", "websockets")
    address = f"{'ws://' * (protocol == 'websockets')}127.0.0.1:{setting('PORT')}"
    client = FederatedClient(
        build_client(protocol=protocol, server_uri=address, name=name),
        InMemoryDataset(features, target),
        secagg=parse_secagg_config_client(kind, id_keys={"prv_key": key(name), "trusted": trusted})
        if kind
        else None,
        verbose=False,
    )
    Curves.client, Curves.ledger = (
        client,
        PrivacyLedger(budget=float(setting("BUDGET", "100")), path=folder / name),
    )
    client.run()


if __name__ == "__main__":
    where = Path(setting("FOLDER"))
    serve(where) if sys.argv[1] == "server" else join(sys.argv[1], where)
