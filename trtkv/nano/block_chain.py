"""Chained hashes of the full blocks of one token string, each computed once."""

from __future__ import annotations

from array import array

from trtkv.nano.hashing import TOKEN_BYTES, hash_block, token_bytes


class BlockChain:
    """``hashes[i]`` covers blocks 0..i, ``contents[i]`` holds the token bytes of block i.

    Tokens are only ever appended, so an entry stays valid once it is there: a sequence that waits, is admitted, is
    preempted and admitted again hashes each of its blocks a single time.
    """

    __slots__ = ("contents", "hashes")

    def __init__(self) -> None:
        self.hashes: list[int] = []
        self.contents: list[bytes] = []

    def extend(self, tokens: array[int], block_size: int) -> None:
        """Add entries for the next tokens, which must be full blocks."""
        hashes, contents = self.hashes, self.contents
        width = block_size * TOKEN_BYTES
        # One copy for all new blocks: slicing bytes is cheaper than slicing the array block by block.
        data = token_bytes(tokens)
        prefix = hashes[-1].to_bytes(8, "little") if hashes else b""
        for offset in range(0, len(data), width):
            content = data[offset : offset + width]
            digest = hash_block(prefix, content)
            prefix = digest.to_bytes(8, "little")
            hashes.append(digest)
            contents.append(content)
