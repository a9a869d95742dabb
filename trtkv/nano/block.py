"""One physical block of the pool: how many sequences hold it, and which full block of tokens it keeps."""

from __future__ import annotations

from typing import Final

from trtkv.errors import InvalidInputError
from trtkv.nano.hashing import unpack_tokens

NO_HASH: Final = -1
"""Hash of a block that is not full or was never registered; digests are never negative."""


class Block:
    """Identity, reference count and content. Only BlockManager writes to it."""

    __slots__ = ("block_id", "content", "hash", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.hash = NO_HASH
        self.content = b""
        """Token bytes of a registered block, empty otherwise; they outlive the sequence until the block is reused."""

    @property
    def token_ids(self) -> list[int]:
        """Tokens of a registered block as a new list, empty otherwise."""
        return unpack_tokens(self.content)

    def update(self, block_hash: int, content: bytes) -> None:
        """Register full content, the bytes of its tokens, under its chained hash."""
        if not isinstance(content, bytes):
            raise InvalidInputError(
                f"block {self.block_id} was given a {type(content).__name__} as content; give "
                "token_bytes(pack_tokens(token_ids)), which is compared and hashed as it is"
            )
        self.hash = block_hash
        self.content = content

    def reset(self) -> None:
        """Make it the empty block of one sequence."""
        self.ref_count = 1
        self.hash = NO_HASH
        self.content = b""

    def __repr__(self) -> str:
        return f"Block(block_id={self.block_id}, ref_count={self.ref_count}, hash={self.hash})"
