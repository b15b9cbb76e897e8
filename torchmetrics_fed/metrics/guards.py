"""Guards: callers that a private metric must not serve, and that give no other sign than being on the stack.

They are the last resort, and never on the path of an exact metric.
"""

import inspect
from collections.abc import Iterator
from types import FrameType

from torchmetrics.wrappers import BootStrapper

from torchmetrics_fed.errors import ReleaseError

__all__ = ["refuse_logging", "refuse_resampling"]

# Where Lightning computes what was given to `self.log`.
_LOGGING = "connectors.logger_connector.result"


def refuse_resampling() -> None:
    """Raise if this copy of a private metric is being made by a wrapper that resamples.

    Each of its copies would release the same people's data, and count some of them several times, beyond the declared
    sensitivity.
    """
    if any(isinstance(frame.f_locals.get("self"), BootStrapper) for frame in _callers()):
        raise ReleaseError(
            "Expected a private metric outside BootStrapper, which resamples: an example that is drawn twice is "
            "protected half as well. Bootstrap without `privacy`, or ask a release for its bands."
        )


def refuse_logging(name: str) -> None:
    """Raise if Lightning is about to log a private curve, before anything is released for what it cannot log."""
    if any(frame.f_globals.get("__name__", "").endswith(_LOGGING) for frame in _callers()):
        raise ReleaseError(
            f"Expected a scalar in `self.log` but {name} is a curve. Log FederatedAUROC or FederatedAveragePrecision, "
            "in one `federated_collection` with the curve, or use integrations.lightning.FederatedEvaluation, which "
            "logs the scalars and hands the figure to the logger."
        )


def _callers() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
