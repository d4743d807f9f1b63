"""Symptom hang: processes wait for one another and nothing moves. One file per root cause; each declares CHECK."""
