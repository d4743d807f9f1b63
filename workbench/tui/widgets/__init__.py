"""Widgets of our own: each draws lines itself, with styles built once."""
