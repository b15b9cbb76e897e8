"""Flower's quickstart-pytorch with ten synthetic classes, and the curves of all its clients."""
