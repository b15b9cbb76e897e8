"""Eight hospitals train a model with Flower and draw the curve of all their patients."""
