"""Stand-ins for packages that a system imports on the way to its block manager and never calls there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any


class _AnythingType(type):
    """A class whose attributes, items and unions are stand-ins too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = _make_anything(name)
        setattr(cls, name, attribute)
        return attribute

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


def _make_anything(name: str) -> Any:
    def new(cls: type, *arguments: Any, **options: Any) -> Any:
        is_decorated = len(arguments) == 1 and not options and isinstance(arguments[0], FunctionType)
        return arguments[0] if is_decorated else object.__new__(cls)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if arguments else None

    return _AnythingType(name, (), {"__new__": new, "__init__": lambda self, *_, **__: None, "__call__": call})


class _StandInModule(ModuleType):
    __path__: tuple[str, ...] = ()
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = _make_anything(name)
        setattr(self, name, attribute)
        return attribute


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._names:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in_for(*names: str) -> None:
    """From now on an import of one of these packages that is not installed gives a stand-in."""
    missing = {name for name in names if importlib.util.find_spec(name) is None}
    sys.meta_path.insert(0, _Finder(missing))
