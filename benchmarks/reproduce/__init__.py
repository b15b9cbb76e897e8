"""The paper's experiments, run by this package: ``python -m benchmarks.reproduce --help``."""
