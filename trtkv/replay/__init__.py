"""Replay of request traces: readers, the closed loop that drives a manager, reports, generated workloads."""
