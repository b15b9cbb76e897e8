"""Flower: the global curve of a federation's clients, with or without secure aggregation.

Extra ``flower``.

On the client one line in ``@app.evaluate``, on the server one argument of the strategy;
``docs/flower.md`` has both.
"""

from torchmetrics_fed.integrations.flower.client import RECORD, evaluation_mod, state_record
from torchmetrics_fed.integrations.flower.strategy import FederatedEvaluationMixin, aggregate_fn

__all__ = ["RECORD", "FederatedEvaluationMixin", "aggregate_fn", "evaluation_mod", "state_record"]
