"""Functions that run as they are inside a compiled module."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncompiled(function: _Function) -> _Function:
    """Return a function that is a break in the graph of a compiled module: counting is not torch alone.

    ``torch.compiler.disable`` would do, but imports the compiler, for a second, where nobody compiles.
    """
    disabled: Any = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    return cast("_Function", call)
