"""Integer noise from the operating system's randomness, exact up to `CELL_TOTAL_VARIATION`.

| sampler | law of a cell | the shares of n clients |
|---|---|---|
| `two_sided_geometric` | proportional to exp(-epsilon abs(k)) | |
| `polya` | difference of two NB(1/n, 1 - exp(-epsilon)) | sum exactly to the one above |
| `skellam` | difference of two Poisson(mean) | of mean / n sum exactly to mean |
| `discrete_gaussian` | proportional to exp(-k^2 / (2 sigma2)) | sum only nearly to this law |
| `gamma_difference` | continuous, in floats | for comparison only |
"""

from __future__ import annotations

from torchmetrics_fed.privacy.samplers.gaussian import discrete_gaussian
from torchmetrics_fed.privacy.samplers.geometric import two_sided_geometric
from torchmetrics_fed.privacy.samplers.poisson import skellam
from torchmetrics_fed.privacy.samplers.polya import gamma_difference, polya

__all__ = ["CELL_TOTAL_VARIATION", "discrete_gaussian", "gamma_difference", "polya", "skellam", "two_sided_geometric"]

CELL_TOTAL_VARIATION = 2.0**-100
"""Bound on the total variation between a cell of integer noise and its law in the table above.

A cell takes fewer than 2^10 table draws on average, each within `TABLE_TOTAL_VARIATION` = 2^-110 of
its ideal; all other steps are exact. Coupled draw by draw with ideal ones, a run goes astray with
at most the product of the two, rejected proposals included.

To book it: the shares of n clients over c cells are within tau = n c 2^-100 of their ideal. Where
that is (epsilon, delta)-private, they are (epsilon, delta + (1 + exp(epsilon)) tau)-private.
"""
