"""Several hosts: how the launchers of one run find each other and end together."""
