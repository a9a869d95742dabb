"""Which requests wait for which, and what is generated: the protocol of a replay, applied to a trace."""
