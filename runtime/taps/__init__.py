"""Taps: named activations of a forward pass, recorded, kept in a file, and compared."""
