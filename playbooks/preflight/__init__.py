"""Causes that stop a job before its first collective: bind addresses, ports, shared memory. From `workbench fabric`, one file a cause."""
