"""Output in the worked examples of docs/: compares it with what the code prints, or writes it anew.

On the pages named below, a fenced ``python`` block that prints is followed by a ``text`` block with what it prints.
The Python blocks of a page run one after the other as one program.

Run: ``python -m tools.docs_examples [--write]``; exit code 1 if a page shows something else than the code prints.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = (
    *(ROOT / "docs" / f"{name}_by_example.md" for name in ("reuse", "windows", "heads", "hybrid")),
    ROOT / "docs" / "eviction.md",
)

_EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n^```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
_FENCE = re.compile(r"^```(\w+)$", re.MULTILINE)


class Example(NamedTuple):
    """One Python block of a page, and the output shown behind it (None where none is shown)."""

    code: str
    output: str | None
    start: int
    end: int


def read_examples(text: str) -> list[Example]:
    """The Python blocks of a page in order."""
    return [Example(m["code"], m["output"], m.start(), m.end()) for m in _EXAMPLE.finditer(text)]


def run_examples(examples: list[Example], name: str) -> Iterator[str]:
    """Run the blocks in one namespace; yields what each prints."""
    namespace: dict[str, Any] = {"__name__": name}
    for example in examples:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(example.code, name, "exec"), namespace)
        yield out.getvalue()


def rewrite(text: str, name: str) -> str:
    """The page with the output that its code prints now."""
    parts = []
    position = 0
    examples = read_examples(text)
    for example, output in zip(examples, run_examples(examples, name), strict=True):
        parts += [text[position : example.start], f"```python\n{example.code}```\n"]
        if output:
            parts.append(f"\n```text\n{output}```\n")
        position = example.end
    return "".join(parts) + text[position:]


def find_stray_blocks(text: str) -> list[str]:
    """Fenced blocks that are neither Python nor the output of one, such as a ``text`` block by itself."""
    covered = read_examples(text)
    return [
        match.group(1)
        for match in _FENCE.finditer(text)
        if not any(example.start <= match.start() < example.end for example in covered)
    ]


def main() -> int:
    """Check or rewrite all pages."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs_examples", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write what the code prints")
    write = parser.parse_args().write
    status = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        wanted = rewrite(text, page.name)
        if wanted == text:
            continue
        if write:
            page.write_text(wanted, encoding="utf-8")
            print(f"{page.name}: written")
        else:
            print(f"{page.name}: shows other output than its code prints; run: python -m tools.docs_examples --write")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
