"""Refusal of wrappers that resample."""

import inspect

from torchmetrics.wrappers import BootStrapper

from torchmetrics_fed.errors import ReleaseError

__all__ = ["refuse_resampling"]


def refuse_resampling() -> None:
    """Raise if this copy of a private metric is being made by a wrapper that resamples.

    Each of its copies would release the same people's data, and count some of them several times, beyond the declared
    sensitivity. A wrapper gives the metric no other sign of itself than being its caller.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), BootStrapper):
            raise ReleaseError(
                "Expected a private metric outside BootStrapper, which resamples: an example that is drawn twice is "
                "protected half as well. Bootstrap without `privacy`, or ask a release for its bands."
            )
        frame = frame.f_back
