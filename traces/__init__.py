"""What was recorded: schema, run folders, spool, collector, store and views (floor 1)."""
