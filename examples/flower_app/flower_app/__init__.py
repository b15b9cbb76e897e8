"""Flower's quickstart-pytorch with ten made classes, and the curves of all its clients."""
