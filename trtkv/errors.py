"""Exception families. Wrong input is a ValueError, no room is OutOfBlocksError, our own bug is LogicError."""

from __future__ import annotations


class TrtkvError(Exception):
    """Base of everything raised on purpose."""


class InvalidInputError(TrtkvError, ValueError):
    """An argument or the state of a request does not allow the call; nothing was changed."""


class ConfigurationError(InvalidInputError):
    """A manager, pool or scheduler cannot be built from these settings."""


class UnknownIdError(InvalidInputError, LookupError):
    """A request, window, block or layer of that id does not exist. C++: std::out_of_range."""


class RetentionRangeError(InvalidInputError):
    """Token ranges of a retention config are malformed. C++: std::invalid_argument."""


class TraceFormatError(InvalidInputError):
    """A trace row cannot be read; the text holds file, line number and reason."""


class MissingExtraError(TrtkvError, ImportError):
    """An optional package is needed for this call; the text names the extra to install."""


class CapacityError(TrtkvError):
    """There is no room for what was asked."""


class OutOfBlocksError(CapacityError):
    """Too few free blocks in a window; nothing was changed unless the docstring says so."""


class LogicError(TrtkvError):
    """An internal rule is broken: a bug of this project, not of its caller."""


def check(condition: object, message: str) -> None:
    """Raise LogicError unless the condition holds; stays active under ``python -O``."""
    if not condition:
        raise LogicError(message)
