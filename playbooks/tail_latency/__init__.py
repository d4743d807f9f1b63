"""Symptom tail-latency: one file per root cause. Each declares CHECK."""
