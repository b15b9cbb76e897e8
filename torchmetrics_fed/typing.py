"""Names of types that several packages share."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Task = Literal["binary", "multiclass", "multilabel"]

MultiClass = Literal["ovr", "ovo"]
"""How the curves of a multi-class task are defined: one class against the rest, or against one."""

Normalization = Literal["sigmoid", "softmax"]
"""The function that turns logits into scores."""

Average = Literal["micro", "macro", "weighted", "none"]

GridName = Literal["two_sided", "even"]

Groups: TypeAlias = int | Sequence[str] | None
"""The names of the groups, their number, or None for a metric without groups."""

Validation = bool | Literal["deferred"]
"""Whether a batch is checked: at once, never, or at the release."""

IntervalOf = Literal["population", "examples"]
"""What an interval holds: the value of the population, or of all clients' own examples."""

Floats: TypeAlias = NDArray[np.float64]

Singles: TypeAlias = NDArray[np.float32]

Places: TypeAlias = NDArray[np.int64]
"""Positions among the edges of a grid."""
