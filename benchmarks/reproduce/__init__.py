"""The experiments of Xu and Cormode's paper, run by this package: ``python -m benchmarks.reproduce --help``."""
