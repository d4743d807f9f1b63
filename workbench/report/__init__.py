"""A run as one self-contained HTML page. The only package that imports plotly; it reads a run through `traces.store` alone."""
