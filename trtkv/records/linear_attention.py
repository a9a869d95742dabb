"""Linear attention: which context blocks keep a recurrent state, and how many blocks a request needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtkv.checks import check_count, check_integer
from trtkv.common import RECURRENT_STATES, WindowSize, ceil_div, trunc_div, trunc_mod
from trtkv.errors import ConfigurationError


def has_recurrent_states_cache(window_size: WindowSize) -> bool:
    """Whether this window size stands for recurrent states."""
    return window_size == RECURRENT_STATES


@dataclass(frozen=True, slots=True)
class LinearAttentionMetadata:
    """Sizes and snapshot rules of recurrent states. C++: LinearAttentionMetadata."""

    linear_layer_indices: Sequence[int] = ()
    cache_type: WindowSize = RECURRENT_STATES
    all_recurrent_states_bytes: int = 64
    """Bytes of all states of one layer."""
    states_snapshot_interval: int = 0
    """Tokens between two snapshots; 0 takes none. A multiple of the tokens per block."""
    save_last_snapshot: bool = False
    """Whether the last full block of a prompt keeps its state."""
    num_placeholder_blocks: int | None = None
    """Placeholders in the pool; None means as many as the full-attention window has primary blocks."""

    def __post_init__(self) -> None:
        for layer in self.linear_layer_indices:
            check_count("an entry of linear_layer_indices", layer, error=ConfigurationError)
        check_integer("cache_type", self.cache_type, error=ConfigurationError)
        check_integer("all_recurrent_states_bytes", self.all_recurrent_states_bytes, error=ConfigurationError)
        check_integer("states_snapshot_interval", self.states_snapshot_interval, error=ConfigurationError)
        if self.num_placeholder_blocks is not None:
            check_integer("num_placeholder_blocks", self.num_placeholder_blocks, error=ConfigurationError)

    def should_allocate_recurrent_states(
        self, current_block_end_token_idx: int, prompt_len: int, tokens_per_block: int
    ) -> bool:
        """Whether the context block that ends at this token keeps a state (otherwise it is a placeholder)."""
        end = current_block_end_token_idx
        if self.save_last_snapshot and end // tokens_per_block == prompt_len // tokens_per_block:
            return True
        if prompt_len <= end < prompt_len + tokens_per_block:
            return True
        return self.states_snapshot_interval > 0 and end % self.states_snapshot_interval == 0

    def count_states(self, prompt_len: int, tokens_per_block: int, enable_reuse: bool, beam_width: int = 1) -> int:
        """Blocks with a state that a prompt takes up to its first generated token, without hits.

        Those that admission takes, and new live blocks if the prompt ends a block: one per beam, or one fewer where
        the last one is not kept as a snapshot.
        """
        width = tokens_per_block
        last_end = ceil_div(prompt_len, width) * width
        if not enable_reuse:
            return beam_width
        interval = self.states_snapshot_interval
        count = last_end // interval if interval > 0 else 0
        count += not interval or last_end % interval > 0
        last_full = prompt_len // width * width
        if self.save_last_snapshot and 0 < last_full < last_end:
            count += not interval or last_full % interval > 0
        return count + (beam_width if last_end == prompt_len else beam_width - 1)

    def calc_num_blocks_needed_for_req(self, prompt_len: int, tokens_per_block: int, enable_reuse: bool) -> int:
        """Blocks with a state as the reference counts them for budgets.

        It leaves out the live block of a prompt that ends inside a block, and all beams but one; see ``count_states``.
        """
        if not enable_reuse:
            return 1
        interval = self.states_snapshot_interval
        count = trunc_div(prompt_len, interval) if interval > 0 else 0
        if self.save_last_snapshot:
            last_full = trunc_div(prompt_len, tokens_per_block) * tokens_per_block
            last_interval = trunc_div(prompt_len, interval) * interval if interval > 0 else 0
            count += last_full != last_interval
        count += trunc_mod(prompt_len, tokens_per_block) == 0
        return count

    def calc_num_additional_blocks_needed_for_req(
        self, num_tokens: int, prompt_len: int, tokens_per_block: int, enable_reuse: bool
    ) -> int:
        """Blocks still to come while generating, as the reference counts them: one if the prompt ends a block."""
        return int(enable_reuse and prompt_len % tokens_per_block == 0 and num_tokens <= prompt_len + 1)

    def calc_max_memory_blocks(
        self, window_size: WindowSize, tokens_per_block: int, memory_budget: int, num_layers: int
    ) -> int:
        """State blocks that fit into a budget of bytes."""
        if not has_recurrent_states_cache(window_size):
            raise ConfigurationError(f"window {window_size} holds no recurrent states; use {RECURRENT_STATES}")
        if self.states_snapshot_interval % tokens_per_block:
            raise ConfigurationError(
                f"states_snapshot_interval {self.states_snapshot_interval} is not a multiple of "
                f"tokens_per_block {tokens_per_block}"
            )
        return memory_budget // (self.all_recurrent_states_bytes * num_layers)
