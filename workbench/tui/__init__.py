"""The terminal workbench: the same screens for a live and a recorded run. The only importer of textual."""
