"""BlockKey: the readable form of a packed key."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from trtkv.errors import InvalidInputError
from trtkv.keys.key_hash import hash_block_key
from trtkv.keys.packed_key import (
    MmItem,
    PackedKey,
    num_matching_tokens,
    pack_key,
    token_bytes,
)
from trtkv.records.llm_request import to_extra_id_array
from trtkv.records.token_array import to_token_array


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Readable form of a key. C++: BlockKey. ``packed`` and ``unpack`` convert to and from the tree's form."""

    tokens: tuple[int, ...]
    extra_ids: tuple[int, ...] | None = None
    lora_task_id: int | None = None
    cache_salt: str | None = None
    extra_keys: tuple[MmItem, ...] = ()

    def __post_init__(self) -> None:
        if self.extra_ids is not None and len(self.extra_ids) != len(self.tokens):
            raise InvalidInputError(
                f"{len(self.extra_ids)} extra ids for {len(self.tokens)} tokens; give one per token"
            )

    @property
    def uses_extra_ids(self) -> bool:
        """Whether extra ids were given, even if all are 0."""
        return self.extra_ids is not None

    @property
    def packed(self) -> PackedKey:
        """The form kept in the tree."""
        extra = None if self.extra_ids is None else to_extra_id_array(self.extra_ids).tobytes()
        tokens = to_token_array(self.tokens).tobytes()
        return pack_key(tokens, extra, self.lora_task_id, self.cache_salt, self.extra_keys)

    @classmethod
    def unpack(cls, key: PackedKey) -> BlockKey:
        """The readable form of a packed key. InvalidInputError for a digest."""
        tokens = tuple(array("i", token_bytes(key)))
        if isinstance(key, (bytes, range, int)):
            return cls(tokens)
        extra = None if key[1] is None else tuple(array("Q", key[1]))
        return cls(tokens, extra, key[2], key[3], key[4])

    @property
    def supports_partial_matching(self) -> bool:
        """Multimodal blocks match as a whole or not at all."""
        return not self.extra_keys

    def num_matching_tokens(self, other: BlockKey) -> int:
        """Leading tokens shared with another key; 0 unless all constraints are equal."""
        return num_matching_tokens(self.packed, other.packed)

    @property
    def num_tokens(self) -> int:
        """Tokens in the key."""
        return len(self.tokens)

    def shorten(self, new_num_tokens: int) -> BlockKey:
        """The key of the first tokens."""
        if not 0 <= new_num_tokens <= len(self.tokens) or self.extra_keys:
            raise InvalidInputError(
                f"cannot shorten a key of {len(self.tokens)} tokens to {new_num_tokens}; "
                "give 0 up to its length, and a key without multimodal content"
            )
        extra = None if self.extra_ids is None else self.extra_ids[:new_num_tokens]
        return replace(self, tokens=self.tokens[:new_num_tokens], extra_ids=extra)

    def hash(self, parent_hash: int = 0) -> int:
        """64-bit hash chained to the parent's. C++: BlockKeyHasher::hash."""
        return hash_block_key(self.packed, parent_hash)
