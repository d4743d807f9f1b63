"""Causes that lie in the environment and precede every other: drift between ranks or against a baseline, a contended host."""
