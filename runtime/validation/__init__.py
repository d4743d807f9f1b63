"""`workbench validate`: tiers released one after the other, each with its evidence."""
