"""Garbled, repeated or endless output: what was sent, what was loaded, and where a forward pass first parts from a reference."""
