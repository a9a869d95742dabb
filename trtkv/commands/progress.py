"""A progress bar on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, *, what: str = "replay", quiet: bool = False) -> Iterator[Callable[[int], None] | None]:
    """A bar on standard error, fed with the number done; None when that is no terminal, or when quiet."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        step = max(1, total // 200)
        shown = 0

        def update(num_done: int) -> None:
            nonlocal shown
            if num_done >= shown + step or num_done == total:
                shown = num_done
                progress.update(task, completed=num_done)

        yield update
