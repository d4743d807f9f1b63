"""Hot experts in memory, cold ones in the checkpoint's files: a budget of memory for the experts of a rank."""
