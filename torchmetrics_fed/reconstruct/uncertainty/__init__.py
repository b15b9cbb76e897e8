"""What noise and sampling do to curves and areas."""
