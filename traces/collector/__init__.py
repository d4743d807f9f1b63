"""The collector: one process owns a run's DuckDB file and everybody else talks to it over HTTP."""
