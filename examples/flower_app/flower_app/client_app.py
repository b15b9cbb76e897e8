"""A client: trains, and replies to an evaluation with its share of the curves."""

from __future__ import annotations

from types import ModuleType

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from flower_app import task
from flower_app.task import CLASSES, Net, build, load_data
from torchmetrics_fed import FederatedAUROC
from torchmetrics_fed.integrations.flower import RECORD, evaluation_mod, state_record

app = ClientApp()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Apply the mod, built for this run's configuration.

    The local AUROC leaves the client only to show how wrong the mean of local AUROCs is.
    """
    mod = evaluation_mod(build(context.run_config), publish=["auroc"])
    return mod(message, context, call_next)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model = loaded(msg)
    trainloader, _ = data(context)
    epochs = context.run_config["local-epochs"]
    lr = msg.content.config_records["config"]["lr"]
    train_loss = tools(context).train(model, trainloader, epochs, lr, device)
    examples = len(trainloader.dataset)  # type: ignore[arg-type]
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": examples})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate(mods=[guard])
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    if context.node_config["partition-id"] == context.run_config["failing"]:
        raise RuntimeError("This client's disk is broken today.")
    model = loaded(msg)
    _, valloader = data(context)
    metric = build(context.run_config)
    local = FederatedAUROC("multiclass", num_classes=CLASSES, normalization="softmax")
    eval_loss, eval_acc = tools(context).test(model, valloader, device, metric, local)
    metrics = MetricRecord(
        {
            "eval_loss": eval_loss,
            "eval_acc": eval_acc,
            "auroc": float(local.compute()),
            "num-examples": len(valloader.dataset),  # type: ignore[arg-type]
        }
    )
    content = RecordDict({"metrics": metrics})
    content[RECORD] = state_record(metric)
    return Message(content, reply_to=msg)


def loaded(msg: Message) -> Net:
    """Return the model with the received weights."""
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    return model.to(device)


def data(
    context: Context,
) -> tuple[torch.utils.data.DataLoader[task.Batch], torch.utils.data.DataLoader[task.Batch]]:
    """Return this client's data."""
    config = context.node_config
    return load_data(
        int(config["partition-id"]),
        int(config["num-partitions"]),
        int(context.run_config["batch-size"]),
    )


def tools(context: Context) -> ModuleType:
    """Return the module with this client's `train` and `test`: plain PyTorch or Lightning."""
    if context.run_config["trainer"] == "torch":
        return task
    from flower_app import lightning_task

    return lightning_task
