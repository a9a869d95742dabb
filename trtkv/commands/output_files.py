"""Files that a command will write."""

from __future__ import annotations

import os


def check_writable(path: str | None) -> None:
    """Fail before a long run rather than after it. Leaves no new file and no changed one behind."""
    if path is None or path == "-":
        return
    is_new = not os.path.exists(path)
    with open(path, "a", encoding="utf-8"):
        pass
    if is_new:
        os.unlink(path)
