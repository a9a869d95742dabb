"""Types of arguments that the tools share, and the end of a tool: wrong input is one line and exit status 2."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

BAD_INPUT = 2


def existing_file(text: str) -> Path:
    """A file that can be read."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; give a file")
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    if not os.access(path, os.R_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be read")
    return path


def existing_folder(text: str) -> Path:
    """A folder."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return path


def output_file(text: str) -> Path:
    """A file to be written, told before a long run and not after it."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; give a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent} to write {path.name} in")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def command(text: str) -> str:
    """A program on the path, or by its path."""
    if shutil.which(text) is None:
        raise argparse.ArgumentTypeError(f"there is no command {text}")
    return text


def at_least(least: int) -> Callable[[str], int]:
    """A whole number not below ``least``."""

    def integer(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return integer


def run_tool(main: Callable[[], int]) -> None:
    """Run a tool and exit with what it returns; what is wrong with its input is one line on standard error."""
    try:
        sys.exit(main())
    except (ValueError, OSError) as error:
        from trtkv.errors import TrtkvError

        if not isinstance(error, TrtkvError | OSError):
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(BAD_INPUT)
