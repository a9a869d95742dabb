"""Request traces: one request, rows of files, and what is known of them."""
