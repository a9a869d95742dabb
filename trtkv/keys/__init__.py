"""Identity of a block's content: keys, their packed form, and their hashes."""
