"""``python -m trtkv`` is the ``trtkv`` program."""

from __future__ import annotations

from trtkv.cli import main

if __name__ == "__main__":
    main()
