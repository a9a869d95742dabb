"""The parts of a window as the reference was recorded: what differs from the ordinary ones, and nothing else."""
