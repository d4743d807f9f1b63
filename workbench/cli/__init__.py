"""The command line: one file per command group, thin over the floors below. Only `click` is imported before a command runs."""
