"""A plain PyTorch client: evaluates the model that it receives, trains it, and sends both back."""

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
features, target, unseen, truth = data(site)
model = Model()
metric = own_metric(site, arguments.privacy, arguments.ledgers)

while flare.is_running():
    received = flare.receive()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})

    with torch.no_grad():
        logits = model(unseen)
    metric.update(logits, truth)
    if arguments.scores:
        torch.save((logits, truth), f"{arguments.scores}/{site}-{received.current_round}.pt")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(
            model(features), target.float()
        ).backward()
        optimizer.step()

    sent = flare.FLModel(params=model.state_dict())  # no number of examples, no local metric
    flare.send(attach(sent, metric, round=received.current_round))
    metric.reset()
