"""One module per command of the ``trtkv`` program; each reads its options, calls the library and prints."""
