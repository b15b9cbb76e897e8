"""The parts that all figures share: canvas, page and panels."""
