"""Records that users and other rooms pass around: requests, retention, settings, statistics."""
