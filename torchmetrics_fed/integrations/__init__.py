"""Federated metrics inside trainers. Each module needs its extra."""
