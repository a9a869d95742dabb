"""Many replays with different settings: which ones, on which processes, and what became of them."""
