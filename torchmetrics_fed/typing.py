"""Names of types that several packages share."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Task = Literal["binary", "multiclass", "multilabel"]
MultiClass = Literal["ovr", "ovo"]
Normalization = Literal["sigmoid", "softmax"]
Average = Literal["micro", "macro", "weighted", "none"]
GridName = Literal["two_sided", "even"]
Groups: TypeAlias = int | Sequence[str] | None
"""Names of groups, their number, or None where there are none."""
Validation = bool | Literal["deferred"]

Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Places: TypeAlias = NDArray[np.int64]
"""Positions among the edges of a grid."""
