"""Scratch: room that is kept between batches. Fresh memory costs as much as a quarter of the counting."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Scratch(threading.local):
    """Named arrays, each thread's own, and in no object that could be pickled: they hold what the last scores were."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Any], tuple[Tensor, NDArray[Any]]] = {}
        self._whole: dict[tuple[str, Any], NDArray[Any]] = {}
        self._constants: dict[tuple[Any, int], NDArray[Any]] = {}

    def room(self, name: str, dtype: Any, size: int) -> tuple[Tensor, NDArray[Any]]:
        """Return ``size`` numbers of a numpy dtype with anything in them, as a tensor and as an array."""
        kept = self._kept.get((name, dtype))
        if kept is not None and len(kept[1]) == size:  # most batches are as large as the one before
            return kept
        whole = self._whole.get((name, dtype))
        if whole is None or len(whole) < size:
            whole = self._whole[name, dtype] = np.empty(max(size, 1_024), dtype)
        kept = self._kept[name, dtype] = torch.from_numpy(whole[:size]), whole[:size]
        return kept

    def constant(self, dtype: Any, value: int, size: int) -> NDArray[Any]:
        """Return ``size`` times one number: numpy takes the minimum with an array in half the time of a scalar."""
        kept = self._constants.get((dtype, value))
        if kept is None or len(kept) < size:
            kept = self._constants[dtype, value] = np.full(max(size, 1_024), value, dtype)
        return kept[:size]


scratch = Scratch()
