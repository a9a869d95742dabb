"""GenerationRequest: what a manager keeps about one sequence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

from trtkv.blocks.kv_cache_block import KVCacheBlock
from trtkv.common import MAX_INT32, BlockId, KvCacheTransferMode, Priority, RequestId, WindowSize
from trtkv.errors import InvalidInputError, UnknownIdError, check
from trtkv.records.kv_cache_index import NULL_ENTRY, is_primary
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY, KvCacheRetentionConfig


class SequenceWindow:
    """A sequence's blocks in one window.

    ``held``: blocks by position, beams interleaved; out-of-window positions hold a placeholder.
    ``block_ids``: per beam the ids shown to callers; out-of-window positions keep their old id.
    ``slots``: per beam a row of the page table, as long as its ids: the slot each position had when its entry was
    written (NULL_ENTRY: none, or no longer in the window). Kernels get what ``read_rows`` returns.
    ``has_moved``: whether a block that is held was moved between the levels, by hand or for somebody else.
    ``num_stored``: leading blocks that admission or the last store found in the tree at their position, the last of
    them for the request's ``last_stored_key`` at a node of ``last_node_key``, when ``num_shared_moves`` shared blocks
    had been stored at another place.
    """

    __slots__ = (
        "block_ids",
        "has_moved",
        "held",
        "last_node_key",
        "last_stored_key",
        "num_front_blocks_removed",
        "num_shared_moves",
        "num_stored",
        "slots",
    )

    def __init__(self, beam_width: int) -> None:
        self.held: list[KVCacheBlock] = []
        self.block_ids: list[list[BlockId]] = [[] for _ in range(beam_width)]
        self.slots: list[array[int]] = [array("i") for _ in range(beam_width)]
        self.num_front_blocks_removed = 0
        self.has_moved = False
        self.num_stored = 0
        self.num_shared_moves = 0
        self.last_stored_key: object = None
        self.last_node_key: object = None

    def read_rows(self) -> list[array[int]]:
        """Rows of a page table, one per beam: slots of blocks that the sequence holds, NULL_ENTRY elsewhere.

        InvalidInputError if one of the blocks is not in device memory.
        """
        if self.has_moved:
            return self._read_moved()
        return [slots[:] for slots in self.slots]

    def _read_moved(self) -> list[array[int]]:
        """The rows by where the blocks lie now."""
        for position, block in enumerate(self.held):
            if not (block.is_placeholder or is_primary(block.memory_pool_block_index)):
                raise InvalidInputError(
                    f"block {block.block_id} at position {position // len(self.slots)} is on the host, so no kernel "
                    "can read it; bring it back before its table is read"
                )
        slots = array("i", [NULL_ENTRY if b.is_placeholder else b.memory_pool_block_index for b in self.held])
        return [slots[beam_idx :: len(self.slots)] for beam_idx in range(len(self.slots))]


class GenerationRequest:
    """One sequence: token count, beams and blocks per window. C++: GenerationRequest."""

    __slots__ = (
        "_windows",
        "beam_width",
        "current_prepopulated_prompt_len",
        "holds_window",
        "kv_cache_retention_config",
        "num_tokens",
        "request_id",
    )

    def __init__(
        self,
        request_id: RequestId,
        num_tokens: int,
        beam_width: int,
        window_sizes: Iterable[WindowSize],
        kv_cache_retention_config: KvCacheRetentionConfig | None = None,
    ) -> None:
        self.request_id = request_id
        self.num_tokens = num_tokens
        self.beam_width = beam_width
        self.kv_cache_retention_config = kv_cache_retention_config
        self.current_prepopulated_prompt_len = MAX_INT32
        self.holds_window = False
        """Whether sliding windows stay where they are, as a prompt that is still to be computed needs them to."""
        self._windows = {window_size: SequenceWindow(beam_width) for window_size in window_sizes}

    def get_window(self, window_size: WindowSize) -> SequenceWindow:
        """Blocks in one window."""
        try:
            return self._windows[window_size]
        except KeyError:
            raise UnknownIdError(
                f"window {window_size} is not managed; choose one of {sorted(self._windows)}"
            ) from None

    def get_cache_block_ids(self, window_size: WindowSize) -> list[list[BlockId]]:
        """Ids per beam; out-of-window positions keep their old id."""
        return self.get_window(window_size).block_ids

    def get_rows(self, window_size: WindowSize) -> list[array[int]]:
        """Copies of the rows of a page table, one per beam: the slot of each position, NULL_ENTRY for none.

        InvalidInputError if a block lies on the host, where only ``offload_block``, called by hand, can put it.
        """
        return self.get_window(window_size).read_rows()

    def get_num_front_blocks_removed(self, window_size: WindowSize) -> int:
        """Blocks that left a sliding window."""
        return self.get_window(window_size).num_front_blocks_removed

    def set_current_prepopulated_prompt_len(self, length: int) -> None:
        """Lower the length found in the cache; windows are asked from the widest to the narrowest."""
        check(
            length <= self.current_prepopulated_prompt_len,
            f"a narrower window of request {self.request_id} matched {length} tokens, "
            f"more than the {self.current_prepopulated_prompt_len} before",
        )
        self.current_prepopulated_prompt_len = length

    @property
    def decode_retention_priority(self) -> Priority:
        """Priority of blocks allocated while generating."""
        config = self.kv_cache_retention_config
        return DEFAULT_RETENTION_PRIORITY if config is None else config.decode_retention_priority

    @property
    def decode_duration_ms(self) -> int | None:
        """Duration of that priority."""
        config = self.kv_cache_retention_config
        return None if config is None else config.decode_duration_ms

    @property
    def transfer_mode(self) -> KvCacheTransferMode:
        """How this sequence's blocks travel between levels."""
        config = self.kv_cache_retention_config
        return KvCacheTransferMode.DRAM if config is None else config.transfer_mode

    @property
    def directory(self) -> str:
        """Directory of the file modes."""
        config = self.kv_cache_retention_config
        return "" if config is None else config.directory


def find_sequence(sequences: Mapping[RequestId, GenerationRequest], request_id: RequestId) -> GenerationRequest:
    """The sequence of a request; UnknownIdError if it has none."""
    try:
        return sequences[request_id]
    except KeyError:
        raise UnknownIdError(f"request {request_id} has no sequence; add it first") from None
