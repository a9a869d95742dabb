"""Free blocks as the reference was recorded: what differs from the ordinary order, and nothing else."""
