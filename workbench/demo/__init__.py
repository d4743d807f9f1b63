"""`workbench demo`: the whole workbench on one machine in minutes, with a fault that is really produced and really repaired."""
