"""CopyJob and BlockLayout: what is to be copied, and how a block lies in its pool."""

from __future__ import annotations

from typing import NamedTuple


class CopyJob(NamedTuple):
    """Copy the first ``num_tokens`` tokens from one slot to another."""

    src_slot: int
    dst_slot: int
    num_tokens: int


class BlockLayout(NamedTuple):
    """Where the bytes of a block lie in a pool; all sizes in bytes. See csrc/block_copy.cu.

    A block is ``num_pieces`` pieces (layer and K/V), a piece is ``rows_per_piece`` rows (heads, or one).
    """

    num_pieces: int
    rows_per_piece: int
    token_bytes: int
    row_bytes: int
    slot_stride: int
    piece_stride: int
    num_slots: int

    @property
    def tokens_per_row(self) -> int:
        """Tokens that a whole row holds."""
        return self.row_bytes // self.token_bytes

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool, from its first slot to the end of its last one."""
        last_slot = (self.num_slots - 1) * self.slot_stride
        last_piece = (self.num_pieces - 1) * self.piece_stride
        return last_slot + last_piece + self.rows_per_piece * self.row_bytes

    def num_copied_bytes(self, num_tokens: int) -> int:
        """Bytes that a copy of this many tokens moves."""
        return self.num_pieces * self.rows_per_piece * num_tokens * self.token_bytes
