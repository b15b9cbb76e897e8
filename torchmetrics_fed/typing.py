"""Names of types that several packages share."""

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Task = Literal["binary", "multiclass", "multilabel"]
MultiClass = Literal["ovr", "ovo"]
Normalization = Literal["sigmoid", "softmax"]
Average = Literal["micro", "macro", "weighted", "none"]
Validation = bool | Literal["deferred"]

Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Places: TypeAlias = NDArray[np.int64]
"""Positions among the edges of a grid."""
