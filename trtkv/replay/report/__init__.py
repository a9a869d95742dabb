"""Shows results: terminal, page, plots, JSON."""
