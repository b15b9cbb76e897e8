"""What a notebook shows of a result: a table of its scalars, and its figure."""

from __future__ import annotations

import base64
import io
from importlib.util import find_spec
from typing import Any, Protocol

from torch import Tensor

from torchmetrics_fed.markup import html_table

MOST_COLUMNS = 10
"""Of more classes than this the table shows the lowest, the mean and the highest value."""

NOTEBOOK_DPI = 120
"""Pixels for each inch of a figure in a notebook."""


class Result(Protocol):
    """Something with numbers by name, and a figure."""

    @property
    def scalars(self) -> dict[str, Tensor]:
        """The numbers by name, one for each class."""

    def plot(self) -> Any:
        """Draw the figure, and return it with its axes."""


def result_html(result: Result) -> str:
    """Return the scalars of a result as a table, and its figure if matplotlib is installed."""
    scalars = {name: value.detach().cpu() for name, value in result.scalars.items()}
    classes = max((value.numel() for value in scalars.values()), default=1)
    head: list[str] = []
    if 1 < classes <= MOST_COLUMNS:
        head = ["", *(f"class {number}" for number in range(classes))]
    elif classes > MOST_COLUMNS:
        head = [f"{classes} classes", "lowest", "mean", "highest"]
    rows = [[name.replace("_", " "), *_cells(value)] for name, value in scalars.items()]
    table = html_table(rows, head=head, caption=type(result).__name__)
    return table + figure_html(result)


def _cells(value: Tensor) -> list[str]:
    """Return the texts of the values of each class, or of three of their statistics."""
    values = value.double().flatten()
    if len(values) > MOST_COLUMNS:
        numbers = values[~values.isnan()]
        if not len(numbers):
            return ["nan"] * 3
        statistics = (numbers.min(), numbers.mean(), numbers.max())
        return [f"{number.item():.4g}" for number in statistics]
    return [f"{number:.4g}" for number in values.tolist()]


def figure_html(drawable: Any) -> str:
    """Return the figure of ``drawable.plot()`` as an image; empty without matplotlib."""
    if find_spec("matplotlib") is None:
        return ""
    import matplotlib.pyplot as plt

    fig, _ = drawable.plot()
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", bbox_inches="tight", dpi=NOTEBOOK_DPI)
    plt.close(fig)  # else the notebook would show it a second time
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{type(drawable).__name__}" src="data:image/png;base64,{data}">'
