"""UniqueToken, BlockKey and BlockKeyHasher as the bindings show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trtkv.bindings._border import bound_class
from trtkv.keys import block_key as core
from trtkv.keys.packed_key import PackedKey


class UniqueToken:
    """A token and its extra id. Not comparable by value, as in the bindings."""

    __slots__ = ("token_extra_id", "token_id")

    def __init__(self, token_id: int = 0, token_extra_id: int = 0) -> None:
        self.token_id = token_id
        self.token_extra_id = token_extra_id

    def __repr__(self) -> str:
        return f"UniqueToken({self.token_id}, {self.token_extra_id})"


def make_unique_tokens(tokens: Iterable[int], extra_ids: Sequence[int] | None = None) -> list[UniqueToken]:
    """Tokens with their extra ids, 0 where none was given."""
    return [
        UniqueToken(token, extra_ids[index] if extra_ids is not None and index < len(extra_ids) else 0)
        for index, token in enumerate(tokens)
    ]


@bound_class
class BlockKey:
    """A key by value: from nothing, (tokens, lora_task_id) or (uses_extra_ids, lora_task_id, unique_tokens)."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._core = core.BlockKey(*_read_arguments(args, kwargs))

    @classmethod
    def wrap(cls, key: PackedKey) -> BlockKey:
        """The key of a block of the tree."""
        wrapped = cls()
        wrapped._core = core.BlockKey.unpack(key)
        return wrapped

    @property
    def core(self) -> core.BlockKey:
        """The key itself."""
        return self._core

    @property
    def uses_extra_ids(self) -> bool:
        """Whether extra ids were given."""
        return self._core.uses_extra_ids

    @property
    def lora_task_id(self) -> int | None:
        """The adapter."""
        return self._core.lora_task_id

    @property
    def unique_tokens(self) -> list[UniqueToken]:
        """Tokens with extra ids, a new list each time."""
        return make_unique_tokens(self._core.tokens, self._core.extra_ids)

    def __eq__(self, other: object) -> bool:
        return self._core.packed == other._core.packed if isinstance(other, BlockKey) else NotImplemented

    def __hash__(self) -> int:
        return BlockKeyHasher.hash(self)


def _read_arguments(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[int, ...], tuple[int, ...] | None, int | None]:
    if len(args) == 3 or "unique_tokens" in kwargs:
        names = ("uses_extra_ids", "lora_task_id", "unique_tokens")
    else:
        names = ("tokens", "lora_task_id", "unused")
    given = dict(zip(names, args, strict=False))
    if len(args) > 3 or given.keys() & kwargs.keys() or not kwargs.keys() <= set(names[: len(names)]):
        raise TypeError("BlockKey takes (), (tokens, lora_task_id) or (uses_extra_ids, lora_task_id, unique_tokens)")
    given.update(kwargs)
    lora = given.get("lora_task_id")
    if lora is not None and (not isinstance(lora, int) or isinstance(lora, bool)):
        raise TypeError(f"lora_task_id must be an int or None, not {lora!r}")
    unique = given.get("unique_tokens")
    if unique is None:
        tokens = given.get("tokens", ())
        if not isinstance(tokens, Sequence):
            raise TypeError(f"tokens must be a sequence, not {tokens!r}")
        return tuple(tokens), None, lora
    if not isinstance(unique, Sequence) or not all(isinstance(token, UniqueToken) for token in unique):
        raise TypeError("unique_tokens must be a list of UniqueToken")
    extra = tuple(token.token_extra_id for token in unique) if given.get("uses_extra_ids") else None
    return tuple(token.token_id for token in unique), extra, lora


class BlockKeyHasher:
    """Hashes of keys."""

    @staticmethod
    def hash(block_key: BlockKey, parent_hash: int = 0) -> int:
        """64-bit hash, chained to the parent's."""
        return block_key.core.hash(parent_hash)
