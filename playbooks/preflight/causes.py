"""The checks of what stops a job before its first collective."""

from __future__ import annotations

from playbooks.preflight import bind_address, firewall, rendezvous, shared_memory

CHECKS = (bind_address.CHECK, firewall.CHECK, shared_memory.CHECK, rendezvous.CHECK)
