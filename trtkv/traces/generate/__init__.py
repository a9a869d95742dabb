"""Generated request traces."""
