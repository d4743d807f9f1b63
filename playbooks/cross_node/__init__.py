"""Symptom cross-node-throughput: throughput collapses across hosts. One file per root cause; each declares CHECK."""
