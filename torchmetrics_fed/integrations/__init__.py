"""Federated metrics inside trainers. Each module needs its extra. Examples assume an import of
what they document."""
