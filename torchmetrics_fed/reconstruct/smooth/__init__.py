"""A smooth model of the scores, and counts on all bins by it."""
