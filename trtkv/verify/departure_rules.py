"""Which decision explains a departure: a table of rules over the op, the place of the difference and the manager."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trtkv.common import RECURRENT_STATES, CacheType, WindowSize
from trtkv.errors import InvalidInputError
from trtkv.eviction.level_queues import LevelQueues
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.multimodal_keys import check_multimodal_input
from trtkv.keys.packed_key import PackedKey
from trtkv.keys.recorded_keys import to_recorded_keys
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest
from trtkv.records.retention_config import DEFAULT_RETENTION_PRIORITY
from trtkv.verify.compare import Difference
from trtkv.verify.json_kinds import JsonValue
from trtkv.verify.machine_state import MachineState
from trtkv.verify.op_machine import OpOutcome
from trtkv.verify.program import RecordedOp
from trtkv.window_block_manager import WindowBlockManager


class SequenceFacts(NamedTuple):
    """The sequence that an op names, as it was before the op."""

    num_tokens: int
    beam_width: int
    num_front_blocks_removed: Mapping[WindowSize, int]


@dataclass(frozen=True, slots=True)
class Step:
    """An op that both behaviours have run, and the first difference between them.

    ``state`` is that of the machine with the recorded behaviour, after the op; ``outcome`` is the default one's.
    """

    recorded: RecordedOp
    difference: Difference
    state: MachineState
    outcome: OpOutcome
    sequence: SequenceFacts | None

    @property
    def manager(self) -> KVCacheManager:
        """The selected manager."""
        return self.state.manager

    @property
    def request(self) -> LlmRequest | None:
        """The request that the op names."""
        return self.state.requests.get(self.recorded.args.get("id", -1))

    @property
    def window_size(self) -> WindowSize | None:
        """The window in which the difference lies, if its path names one."""
        match = re.match(r"(?:inside\.\w+|ret|obs\.\w+(?:\[\d+\]\.\w+)?)\.(-?\d+)(?!\d)", self.difference.path)
        return None if match is None else int(match[1])


class Rule(NamedTuple):
    """Departures that a decision explains: those of an op at a place, under a condition."""

    decision: str
    """Number of the page in docs/decisions."""
    ops: Collection[str]
    field: str
    """Regular expression for the whole path of the difference."""
    applies: Callable[[Step], bool] = lambda step: True


# -- conditions -----------------------------------------------------------------------------------


def _is_cross(step: Step) -> bool:
    return step.manager.cache_type is CacheType.CROSS


def _is_recurrent(step: Step) -> bool:
    return step.window_size == RECURRENT_STATES


def _has_recurrent_window(step: Step) -> bool:
    return RECURRENT_STATES in step.manager.window_sizes_metadata


def _fails(step: Step) -> bool:
    return step.recorded.has_failed


def _fails_on_both(step: Step) -> bool:
    return step.recorded.has_failed and step.outcome.error is not None


def _stores_uncomputed(step: Step) -> bool:
    """The prompt is not computed, or the request has tokens or beams that storing leaves out."""
    request, sequence = step.request, step.sequence
    if request is None or sequence is None:
        return False
    return (
        request.context_current_position < request.prompt_len
        or sequence.num_tokens < request.get_num_tokens(0)
        or sequence.beam_width > 1
    )


def _has_left_blocks(step: Step) -> bool:
    """The window of the difference, or any window for the tree, has moved on."""
    sequence = step.sequence
    if sequence is None:
        return False
    removed = sequence.num_front_blocks_removed
    return any(removed.values()) if step.window_size is None else removed.get(step.window_size, 0) > 0


def _has_left(step: Step) -> bool:
    """A null entry where a window of one of the sequences has moved on."""
    args, sequences = step.recorded.args, step.manager.sequences
    ids = [args["id"]] if "id" in args else range(args["first_slot"], args["first_slot"] + args["batch_size"])
    return step.difference.got == -1 and any(
        sequences[request_id].get_num_front_blocks_removed(window)
        for request_id in ids
        for window in step.manager.window_sizes_metadata
    )


def _holds_host_blocks(step: Step) -> bool:
    """The table is refused, as a block of the sequence was offloaded by hand."""
    return not step.recorded.has_failed and "is on the host" in str(step.outcome.error)


def _is_refused_for_content(step: Step) -> bool:
    """An image of a request has no run, or begins after its prompt."""
    return re.search("multimodal item \\d+ (has no runs|begins at token)", str(step.outcome.error)) is not None


def _has_images(step: Step) -> bool:
    """Some request of the program has images."""
    return any(request.multimodal_input is not None for request in step.state.requests.values())


def _names_images(step: Step) -> bool:
    """A key that is looked up has images, and does not say where."""
    args = step.recorded.args
    return any(key.get("mm") for key in args.get("keys", [args.get("key", {})]))


def _confuses_places(step: Step) -> bool:
    """Blocks of two requests have equal recorded keys, though their images lie in other places."""
    places: dict[PackedKey, PackedKey] = {}
    for request in step.state.requests.values():
        if request.multimodal_input is not None:
            keys = build_block_keys(request, step.manager.tokens_per_block, request.get_num_tokens(0), True)
            for key, recorded in zip(keys, to_recorded_keys(keys), strict=True):
                if places.setdefault(recorded, key) != key:
                    return True
    return False


def _ends_a_block(step: Step) -> bool:
    """The prompt ends a block, so that the live state of the recurrent window is a cached one."""
    request = step.request
    return request is not None and request.prompt_len % step.manager.tokens_per_block == 0


def _ends_inside_a_block(step: Step) -> bool:
    """What is stored of a prompt, all of it but the last token, ends inside a block."""
    request = step.request
    return request is not None and (request.prompt_len - 1) % step.manager.tokens_per_block > 0


def _adds_part_of_a_state_block(step: Step) -> bool:
    """A node of less than a block was stored for the recurrent window only."""
    node = step.difference.expected
    is_partial = isinstance(node, dict) and len(node["tokens"]) < step.manager.tokens_per_block
    return is_partial and list(node["v"]) == [str(RECURRENT_STATES)]


def _has_tie(step: Step) -> bool:
    """A partial look-up had equal candidates; those of a query are not observed yet."""
    return bool((step.recorded.obs or {}).get("ties")) or step.state.num_ties > 0


def _declines_parts(step: Step) -> bool:
    """Part-filled blocks are not found, or not copied, under the settings of some window."""
    return any(
        not (window.settings.enable_partial_reuse and window.settings.copy_on_partial_reuse)
        for window in step.manager.block_manager.window_block_managers.values()
    )


def _credits_less(step: Step) -> bool:
    """A new request is credited with fewer blocks that others hold."""
    request = step.request
    return request is not None and request.is_context_init_state and step.difference.got > step.difference.expected


def _copies_more(step: Step) -> bool:
    """A batch of which the plan lets more requests copy: whoever takes over is known before anything is evicted."""
    return len(step.recorded.args["requests"]) > 1 and _num_copies(step.outcome.obs) > _num_copies(step.recorded.obs)


def _num_copies(obs: JsonValue) -> int:
    return sum(transfer[0] == "copy" for transfer in (obs or {}).get("xfer", ()))


def _copies_state(step: Step) -> bool:
    """A state is copied that was not before."""
    copies = (step.outcome.obs or {}).get("xfer", [])
    return _num_copies(step.outcome.obs) > _num_copies(step.recorded.obs) and copies[-1][1] == RECURRENT_STATES


def _is_first_copy_of_beams(step: Step) -> bool:
    """A request of several beams has its first generated token."""
    request = step.request
    return request is not None and request.beam_width > 1 and request.get_num_tokens(0) == request.prompt_len + 1


def _has_too_many_beams(step: Step) -> bool:
    return any(entry[2] > step.manager.max_beam_width for entry in step.recorded.args["requests"])


def _has_odd_images(step: Step) -> bool:
    """A request of the batch has images without a proper place."""
    for entry in step.recorded.args["requests"]:
        images = step.state.requests[entry[0]].multimodal_input
        if images is not None:
            try:
                check_multimodal_input(images)
            except InvalidInputError:
                return True
    return False


def _has_no_tokens(step: Step) -> bool:
    return any(entry[1] < 1 for entry in step.recorded.args["requests"])


def _has_no_events(step: Step) -> bool:
    return all(
        manager.context.event_manager is None for manager in step.manager.block_manager.window_block_managers.values()
    )


def _has_reserve(step: Step) -> bool:
    return step.manager.draft_token_reserve > 0 and step.window_size is not None and step.window_size > 0


def _is_budget_of_window(step: Step) -> bool:
    """The window slides, or slots are added for drafts and extra tokens."""
    manager, request = step.manager, step.request
    return request is not None and (
        manager.window_sizes_metadata[step.recorded.args["window"]].is_swa or _has_more_slots(manager, [request])
    )


def _ends_before_its_steps(step: Step) -> bool:
    """Fewer tokens are to come than the next steps of the request could bring."""
    request, sequence = step.request, step.sequence
    if request is None or request.max_new_tokens < 1:
        return False
    num_drafts = max(request.num_draft_tokens, step.manager.draft_token_reserve)
    if sequence is None or not request.is_generation_in_progress_state:
        return request.max_new_tokens < num_drafts
    num_steps = 2 if step.recorded.args.get("two_steps_look_ahead") else 1
    most = request.prompt_len + request.max_new_tokens + step.manager.num_extra_kv_tokens
    return sequence.num_tokens < most < sequence.num_tokens + num_steps * (num_drafts + 1)


def _is_budget_of_schedule(step: Step) -> bool:
    """Budgets of a manager that the scheduler asks differ: see ``_is_budget_of_window``."""
    manager = step.state.self_manager
    if manager is None:
        return False
    requests = [step.state.requests[request_id] for request_id in step.recorded.args["ids"]]
    return any(entry.is_swa for entry in manager.window_sizes_metadata.values()) or _has_more_slots(manager, requests)


def _has_more_slots(manager: KVCacheManager, requests: Sequence[LlmRequest]) -> bool:
    return bool(
        manager.num_extra_kv_tokens
        or manager.draft_token_reserve
        or any(request.num_draft_tokens for request in requests)
    )


def _pauses_others(step: Step) -> bool:
    return _policy(step) == "max_utilization"


def _reserves_to_completion(step: Step) -> bool:
    return _policy(step) in ("guaranteed_no_evict", "static_batch")


def _policy(step: Step) -> str:
    scheduler = step.state.capacity_scheduler
    return "" if scheduler is None else scheduler.policy.value


def _has_same_events(step: Step) -> bool:
    """The same events in the same order, with other hashes in them."""
    return [_shape_of(event) for event in step.recorded.ret] == [_shape_of(event) for event in step.outcome.ret]


def _shape_of(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return event["id"], event["window"], event["type"], len(event.get("hashes", ())), len(event.get("blocks", ()))


def _leaves_empty_blocks_behind(step: Step) -> bool:
    """Blocks that hold nothing wait after others, or one of them is left where another was taken.

    Where blocks move between the levels in one op, it is not looked into.
    """
    difference, window_size = step.difference, step.window_size
    if difference.path == "obs.stats[4]":  # blocks taken that were never used
        return True
    if window_size is None:
        return False
    window = step.manager.block_manager.get_window_block_manager(window_size)
    if re.search(r"blocks|queues\[\d+\]\[2\]", difference.path):  # got is a block
        block = window.get_block_by_id(difference.got)
        if block.lookup_node is None and window.eviction_policy.is_free(block):
            return True
    if difference.path.startswith("obs"):
        transfers = (step.recorded.obs or {}).get("xfer", ())
        return any(transfer[0] != "copy" and transfer[1] == window_size for transfer in transfers)
    return any(not _begins_with_empty_blocks(window, level) for level in window.eviction_policy.levels())


def _begins_with_empty_blocks(window: WindowBlockManager, level: LevelQueues) -> bool:
    """Whether blocks that nobody can find come first, then those never used, all at the default priority."""
    ranks = []
    for priority, ids in level.free_ids():
        for block_id in ids:
            is_fresh = block_id in level.fresh.remaining_ids()
            is_cached = not is_fresh and window.get_block_by_id(block_id).lookup_node is not None
            if not is_cached and priority != DEFAULT_RETENTION_PRIORITY:
                return False
            ranks.append(2 * is_cached + is_fresh)
    return ranks == sorted(ranks)


# -- rules ----------------------------------------------------------------------------------------

_STORING: Final = ("store_context_blocks", "store_new_block", "store_blocks_for_reuse", "remove_sequence")
_RELEASING: Final = ("add_sequence_batch", "add_token", "remove_sequence", "unpin_blocks_by_id")
_BUDGETS: Final = ("get_needed_blocks_one_step", "get_remaining_blocks_to_completion")
_ADD: Final = ("add_sequence_batch",)
_FIND: Final = ("find_blocks_in_reuse_tree_by_block_key", "find_blocks_in_reuse_tree_by_block_keys")
_TABLES: Final = ("copy_block_offsets", "get_block_offsets_of_batch")
_EVENT_HASH: Final = r"ret\[\d+\]\.(hash|hashes\[\d+\]|parent)"
_HASH: Final = r"ret\.-?\d+\.blocks\[\d+\]\[7\]"

RULES: Final = (
    # storing
    Rule("0107", _STORING, r"(inside|ret).*", _is_cross),
    Rule("0113", _STORING, r"(inside|ret).*", _stores_uncomputed),
    Rule("0101", _STORING, r"inside.*", _has_left_blocks),
    Rule("0109", _STORING, r"inside.*", lambda step: _is_recurrent(step) and _ends_a_block(step)),
    Rule("0109", _STORING, r"inside\.\w+\.tree.*", _adds_part_of_a_state_block),
    Rule("0109", _STORING, r"inside.*", lambda step: _is_recurrent(step) and step.difference.expected is None),
    Rule("0109", _STORING, r"inside.*", lambda step: _is_recurrent(step) and _ends_inside_a_block(step)),
    # admission
    Rule("0102", _ADD, r"error", lambda step: not _fails(step) and _has_too_many_beams(step)),
    Rule("0102", _ADD, r"error", lambda step: not _fails(step) and _has_no_tokens(step)),
    Rule("0132", _ADD, r"error", lambda step: not _fails(step) and _has_odd_images(step)),
    Rule("0173", _ADD, r"error", lambda step: not _fails(step) and _is_refused_for_content(step)),
    Rule("0102", _ADD, r"obs.*", _fails_on_both),
    Rule("0107", _ADD, r"error", lambda step: _fails(step) and _is_cross(step)),
    Rule("0107", _ADD, r"obs\.req\[\d+\]\.(prepop|pos|chunk)", _is_cross),
    Rule("0103", _ADD, r"(obs|inside).*", _has_tie),
    Rule("0102", _ADD, r"(obs|inside).*", _copies_more),
    Rule("0109", _ADD, r"(obs|inside).*", _has_recurrent_window),
    Rule("0153", _ADD, r"(obs|inside).*", _declines_parts),
    Rule("0173", (*_ADD, *_STORING), r"(obs|inside|ret).*", _confuses_places),
    # growing and shrinking
    Rule("0102", ("add_token",), r"obs.*", _fails_on_both),
    Rule("0109", ("add_token",), r"obs\.free.*|inside.*", _is_recurrent),
    Rule("0109", ("add_token",), r"obs\.xfer", _copies_state),
    Rule("0109", ("copy_linear_attention_block",), r"ret|obs\.xfer.*", _is_first_copy_of_beams),
    Rule("0106", ("add_token",), r"obs\.free.*", _has_reserve),
    Rule("0106", ("rewind_kv_cache",), r"error|obs.*|inside.*"),
    Rule("0105", ("truncate_blocks",), r"error|obs.*|inside.*"),
    Rule("0111", ("unpin_blocks_by_id",), r"obs.*", _fails_on_both),
    Rule("0112", ("reset_reuse_state",), r"inside.*"),
    Rule("0116", ("offload_block",), r"obs.*|inside.*"),
    Rule("0151", ("offload_block",), r"error", _fails),
    # who is evicted
    Rule("0150", _ADD, r"obs\.(stats\[4\]|req\[\d+\]\.blocks.*)", _leaves_empty_blocks_behind),
    Rule("0150", ("add_token",), r"obs\.(stats\[4\]|req\[\d+\]\.blocks.*)", _leaves_empty_blocks_behind),
    Rule("0150", _RELEASING, r"inside\.\w+\.-?\d+\.queues.*", _leaves_empty_blocks_behind),
    # answers
    Rule("0173", ("debug_state",), _HASH, _has_images),
    Rule("0173", ("commit_and_get_block_hashes",), r"ret.*", _has_images),
    Rule("0173", ("get_latest_events",), _EVENT_HASH, lambda step: _has_same_events(step) and _has_images(step)),
    Rule("0173", _FIND, r"ret.*", _names_images),
    Rule("0173", ("analyze_prefix_reuse", *_BUDGETS, "capacity_schedule"), r"(ret|obs|inside).*", _confuses_places),
    Rule("0104", ("debug_state",), _HASH),
    Rule("0103", ("debug_state",), r"ret\.tree.*"),
    Rule("0103", _FIND, r"ret.*", _has_tie),
    Rule("0104", ("commit_and_get_block_hashes",), r"ret.*"),
    Rule("0104", ("get_latest_events",), _EVENT_HASH, _has_same_events),
    Rule("0112", ("get_latest_events",), r"ret.*"),
    Rule("0114", ("get_latest_events",), r"error", lambda step: not _fails(step) and _has_no_events(step)),
    Rule("0121", ("analyze_prefix_reuse",), r"ret\.first_new\.salt", _is_cross),
    Rule("0107", ("analyze_prefix_reuse",), r"ret.*", _is_cross),
    Rule("0152", ("analyze_prefix_reuse",), r"ret\.allocated"),
    Rule("0172", _TABLES, r"ret.*", _has_left),
    Rule("0172", _TABLES, r"error", _holds_host_blocks),
    Rule("0118", ("copy_block_offsets",), r"ret\.offsets.*", lambda step: step.difference.got == -1),
    # budgets and schedulers
    Rule("0110", _BUDGETS, r"ret|obs.*", lambda step: step.recorded.args["window"] == RECURRENT_STATES),
    Rule("0110", ("get_max_capacity_batch_size",), r"ret", _has_recurrent_window),
    Rule("0107", _BUDGETS, r"ret|obs.*", _is_cross),
    Rule("0134", ("get_needed_blocks_one_step",), r"ret", _ends_before_its_steps),
    Rule("0205", _BUDGETS, r"ret|obs.*|inside\.requests.*", _is_budget_of_window),
    Rule("0152", _BUDGETS, r"ret", _credits_less),
    Rule("0117", ("calculate_window_size_to_share",), r"error", _fails),
    Rule("0205", ("capacity_schedule",), r"(ret|obs|inside).*", _is_budget_of_schedule),
    Rule("0201", ("capacity_schedule",), r"(ret|obs|inside).*", _pauses_others),
    Rule("0201", ("scheduling_has_free_blocks",), r"ret", _pauses_others),
    Rule("0130", ("scheduling_remove_sequence", "scheduling_has_free_blocks"), r"error|ret.*"),
    Rule("0202", ("capacity_schedule",), r"(ret|obs|inside).*", _reserves_to_completion),
    Rule("0201", ("capacity_schedule",), r"error", lambda step: _fails(step) and step.manager.is_variable_window),
    Rule("0204", ("micro_batch_schedule", "create_micro_batch_scheduler"), r"(error|ret|obs|inside).*"),
)


def find_decision(step: Step) -> str | None:
    """The decision of the first rule that fits, or None."""
    for rule in RULES:
        if step.recorded.op in rule.ops and re.fullmatch(rule.field, step.difference.path) and rule.applies(step):
            return rule.decision
    return None


# -- totals of the primary level ---------------------------------------------------------------------

TOTALS_DECISION: Final = "0108"


def count_primary_only(recorded: RecordedOp, state: MachineState) -> RecordedOp:
    """The row with the maximum and the use of the primary level alone, as decision 0108 has them."""
    manager = state.selected_manager
    if manager is None or not manager.compatibility:
        return recorded
    num_secondary = sum(entry.allotted_secondary_blocks for entry in manager.window_sizes_metadata.values())
    if not num_secondary:
        return recorded
    if recorded.op == "get_kv_cache_stats":
        return recorded._replace(ret=_subtract(recorded.ret, num_secondary, ("max_num_blocks", "used_num_blocks")))
    if recorded.op == "observe":
        return recorded._replace(ret=_count_primary_only(recorded.ret, num_secondary))
    return recorded._replace(obs=_count_primary_only(recorded.obs, num_secondary))


def _count_primary_only(observation: Any, num_secondary: int) -> Any:
    if observation is None or "stats" not in observation:
        return observation
    return {**observation, "stats": _subtract(observation["stats"], num_secondary, (0, 2))}


def _subtract(values: Any, number: int, keys: Sequence[int | str]) -> Any:
    values = values.copy()
    for key in keys:
        values[key] -= number
    return values
