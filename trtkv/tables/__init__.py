"""Tables as data, and what shows them: terminal, page, JSON, CSV. Nothing here knows what a table is about."""
