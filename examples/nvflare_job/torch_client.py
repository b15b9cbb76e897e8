"""A plain PyTorch client: evaluates the received model, trains it, and sends model and share."""

from __future__ import annotations

import argparse

import nvflare.client as flare
import torch
from sites import SETTINGS, Model, data, own_metric

from torchmetrics_fed.integrations.nvflare import attach

parser = argparse.ArgumentParser()
parser.add_argument("--privacy", choices=SETTINGS, default="none")
parser.add_argument("--ledgers", default=".", help="folder of the site's ledger")
parser.add_argument(
    "--scores", default="", help="folder to save this site's scores in: for the comparison only"
)
arguments = parser.parse_args()

flare.init()
site = flare.get_site_name()
train_features, train_target, test_features, test_target = data(site)
model = Model()
metric = own_metric(site, arguments.privacy, arguments.ledgers)

while flare.is_running():
    received = flare.receive()
    weights = {name: torch.as_tensor(value) for name, value in received.params.items()}
    model.load_state_dict(weights)

    with torch.no_grad():
        logits = model(test_features)
    metric.update(logits, test_target)
    if arguments.scores:
        path = f"{arguments.scores}/{site}-{received.current_round}.pt"
        torch.save((logits, test_target), path)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(train_features), train_target.float()
        )
        loss.backward()
        optimizer.step()

    trained = flare.FLModel(params=model.state_dict())  # no number of examples, no local metric
    flare.send(attach(trained, metric, round=received.current_round))
    metric.reset()
