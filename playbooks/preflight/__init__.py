"""Causes that stop a job before its first collective: bind addresses, ports, shared memory, a meeting that fails. One file a cause."""
