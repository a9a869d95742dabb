"""Which requests run in the next step: by cache capacity first, by token budget second."""
