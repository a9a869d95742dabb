"""What a terminal shows of a result."""

from __future__ import annotations

import io

from rich.console import Console

from trtkv.tables.result import Result
from trtkv.tables.terminal import print_result


def shown(result: Result, width: int = 200, *, boxed: bool = True) -> str:
    stream = io.StringIO()
    print_result(result, Console(file=stream, width=width), boxed=boxed)
    return stream.getvalue()
