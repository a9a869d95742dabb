"""The border of the bindings: exceptions as the C++ bindings raise them, and the switches of the module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from trtkv.errors import InvalidInputError, TrtkvError, UnknownIdError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def raise_translated(error: TrtkvError) -> NoReturn:
    """A missing id is an IndexError, every other failed check a RuntimeError; the original is its cause."""
    kind = IndexError if isinstance(error, UnknownIdError) else RuntimeError
    raise kind(str(error)) from error


def bound(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose errors are those of the bindings."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TrtkvError as error:
            raise_translated(error)

    return call


def bound_class(cls: C) -> C:
    """A class whose methods and properties raise the errors of the bindings."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, property):
            getter, setter = (None if part is None else bound(part) for part in (member.fget, member.fset))
            setattr(cls, name, property(getter, setter, doc=member.__doc__))
        elif isinstance(member, staticmethod | classmethod):
            setattr(cls, name, type(member)(bound(member.__func__)))
        elif callable(member) and not isinstance(member, type) and (not name.startswith("__") or name == "__init__"):
            setattr(cls, name, bound(member))
    return cls


@dataclass(slots=True)
class Configuration:
    """How managers and schedulers made from now on behave."""

    compatibility: bool = True
    """Recorded behaviour of the reference, which the PyTorch flow is written against."""
    device: Any = "cpu"
    """Where ``allocate_pools`` puts the pools."""
    allocate: bool = True
    """False keeps shapes only: a manager of a real model's size without its memory."""


CONFIGURATION = Configuration()


def configure(
    *, compatibility: bool | None = None, device: object = None, allocate: bool | None = None
) -> Configuration:
    """Set the switches that are given; returns all of them. What exists already keeps the mode it was made with.

    Callers of the bindings pass only what the original takes, so these have no place in a constructor.
    """
    for name, value in (("compatibility", compatibility), ("allocate", allocate)):
        if value is not None:
            if not isinstance(value, bool):
                raise InvalidInputError(f"{name} is {value!r}; give True or False")
            setattr(CONFIGURATION, name, value)
    if device is not None:
        CONFIGURATION.device = device
    return CONFIGURATION
