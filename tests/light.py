"""Python processes that know this package's modules but not its ``__init__``, so that they start
without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torchmetrics_fed.privacy

__all__ = ["LightProcess"]

_PRIVACY = Path(next(iter(torchmetrics_fed.privacy.__path__)))

_PREAMBLE = f"""
import sys, types
for name, path in (("torchmetrics_fed", {str(_PRIVACY.parent)!r}), ("torchmetrics_fed.privacy", {str(_PRIVACY)!r})):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [path]
"""


class LightProcess:
    """A new interpreter that runs ``program`` with ``arguments`` in ``sys.argv``."""

    def __init__(self, program: str, *arguments: object) -> None:
        command = [sys.executable, "-c", _PREAMBLE + program, *map(str, arguments)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, line: str) -> None:
        """Read one line of output, which must be ``line``."""
        assert self._process.stdout is not None
        got = self._process.stdout.readline().strip()
        if got != line:
            raise AssertionError(
                f"expected {line!r}, got {got!r}: {self._process.communicate()[1]}"
            )

    def result(self, go: str = "", timeout: float = 60.0) -> list[str]:
        """Send ``go``, wait for the end, and give the words it printed; any failure in it raises
        here."""
        try:
            out, err = self._process.communicate(go, timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        if self._process.returncode:
            raise AssertionError(f"exit code {self._process.returncode}: {err}")
        return out.split()
