"""Preconditioned conjugate gradients for any number of centers."""
