"""Other engines' telemetry: files and endpoints that we did not write, read into the tables of the schema."""
