"""Seeded random programs for one manager, with a memory that finds wrong content and a check after each action."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.builders import make_event_manager, make_kv_cache_manager
from tests.event_mirror import EventMirror
from tests.fake_clock import FakeClock
from tests.fake_memory import FakeEngine, FakeMemory
from tests.snapshot import find_changes, take_snapshot
from trtkv.blocks.block_listener import BlockListener
from trtkv.common import RECURRENT_STATES, ceil_div
from trtkv.errors import InvalidInputError, LogicError, OutOfBlocksError, TrtkvError
from trtkv.inspection.invariants import check_invariants
from trtkv.records.llm_request import LlmRequest, LlmRequestState, MultimodalInput
from trtkv.records.pinned_block_ids import PinnedBlockIds
from trtkv.records.retention_config import KvCacheRetentionConfig, TokenRangeRetentionConfig
from trtkv.transfers.copy_engine import OFFLOAD, BlockCopy


@dataclass(frozen=True)
class Scenario:
    """What a program may do."""

    name: str
    windows: dict[int, tuple[int, int]]
    options: dict[str, Any] = field(default_factory=dict)
    max_beam_width: int = 1
    retention: bool = False
    constraints: bool = False
    chunked: bool = False
    drafts: bool = False
    pins: bool = False
    truncation: bool = False
    events: bool = False
    vocabulary: int = 2
    max_prompt: int = 30
    max_live: int = 5


class GreedyConnector:
    """Loads nothing, unless told to promise a number of tokens."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def get_num_new_matched_tokens(self, request: LlmRequest, num_computed_tokens: int) -> int:
        return self.num_tokens


class CheckedProgram:
    """One program. ``run`` performs actions until an action breaks a rule."""

    def __init__(self, scenario: Scenario, seed: int, listener: BlockListener | None = None) -> None:
        self.scenario = scenario
        self.random = random.Random(f"{scenario.name}/{seed}")
        self.clock = FakeClock()
        self.events = make_event_manager(100_000) if scenario.events else None
        options = {"tokens_per_block": 4, "max_sequence_length": 64, **scenario.options}
        self.connector = GreedyConnector() if len(scenario.windows) == 1 else None
        self.memory = FakeMemory()
        self.manager = make_kv_cache_manager(
            windows=scenario.windows,
            max_beam_width=scenario.max_beam_width,
            clock=self.clock,
            event_manager=self.events,
            copy_engine=self.memory,
            kv_cache_connector_manager=self.connector,
            block_listener=listener,
            **options,
        )
        if scenario.drafts:
            self.manager.set_spec_decoding_budget(0, 3)
        self.engine = FakeEngine(self.manager, self.memory)
        self.memory.check_copy = self._check_copy
        self.mirror = EventMirror()
        self.tokens_per_block = self.manager.tokens_per_block
        self.is_recurrent = RECURRENT_STATES in scenario.windows
        self.has_one_window = len(scenario.windows) == 1
        self.live: dict[int, LlmRequest] = {}
        self.pins: dict[int, Counter[int]] = {window: Counter() for window in scenario.windows}
        self.next_id = 0
        self.history: list[list[int]] = []
        self.log: list[str] = []
        self.failures: Counter[str] = Counter()
        self.actions = self._choose_actions()

    # -- frame ----------------------------------------------------------------------------------

    def _check_copy(self, copy: BlockCopy) -> None:
        """Rule 27: what is copied to the host can be found there, or is moved by hand."""
        if copy.kind == OFFLOAD:
            block = self.manager.block_manager.get_block_by_id(copy.src_block_id, copy.window_size)
            assert block.has_refs or block.lookup_node is not None, f"{copy} is of no use"

    def _choose_actions(self) -> list[tuple[Callable[[], None], int]]:
        scenario = self.scenario
        actions: list[tuple[Callable[[], None], int]] = [
            (self.add_batch, 6),
            (self.step, 14),
            (self.store_context, 2),
            (self.store_new_block, 2),
            (self.store_for_reuse, 2),
            (self.remove, 4),
            (self.remove_unfinished, 1),
            (self.refresh, 1),
            (self.simulate_scheduling, 1),
            (self.query, 2),
            (self.provoke, 3),
            (self.read_events, 2),
        ]
        if not self.is_recurrent:
            actions += [(self.rewind, 1), (self.pause, 1)]
        if any(secondary for _, secondary in scenario.windows.values()):
            actions.append((self.offload_by_hand, 1))
        if scenario.pins:
            actions += [(self.pin, 1), (self.unpin, 2)]
        if scenario.truncation:
            actions += [(self.truncate, 1), (self.reset, 1)]
        return actions

    def run(self, num_actions: int) -> None:
        """Perform actions, checking the invariants after each."""
        functions = [function for function, _ in self.actions]
        weights = [weight for _, weight in self.actions]
        for _ in range(num_actions):
            self.random.choices(functions, weights)[0]()
            self.check()
        self.finish()

    def check(self) -> None:
        """All rules, with the tokens of every live request and the pins this program knows of."""
        check_invariants(self.manager, self.live, pins=self.pins)

    def finish(self) -> None:
        """Remove everything: all blocks must be free again."""
        for request_id in list(self.live):
            self.call("remove_sequence", request_id, self.live.pop(request_id))
        for window, pins in self.pins.items():
            self.call("unpin_blocks_by_id", list(pins.elements()), window)
            pins.clear()
        self.check()
        self.read_events()
        for window, (num_primary, _) in self.scenario.windows.items():
            assert self.manager.num_free_blocks_per_window_size[window] == num_primary

    def call(self, name: str, *args: Any) -> Any:
        """Call the manager; a call that raises must leave everything as it was. Returns None then."""
        requests = {id(r): r for r in self.live.values()}
        for arg in args:
            for entry in arg if isinstance(arg, list) else [arg]:
                if isinstance(entry, LlmRequest):
                    requests[id(entry)] = entry
        self.log.append(f"{name}{_shorten(args)}")
        before = take_snapshot(self.manager, requests.values(), self.events)
        num_copies = len(self.memory.copies)
        try:
            return getattr(self.manager, name)(*args)
        except LogicError:
            raise
        except TrtkvError as error:
            self.failures[f"{name}: {type(error).__name__}"] += 1
            self.log.append(f"  -> {error}")
            changes = find_changes(before, take_snapshot(self.manager, requests.values(), self.events))
            if len(self.memory.copies) != num_copies:
                changes.append("transfers were issued")
            if changes:
                raise AssertionError(f"{name} raised {error!r} and changed " + "; ".join(changes)) from error
            raise

    def try_call(self, name: str, *args: Any) -> bool:
        """Whether the call succeeded; only lack of room and refused input are expected."""
        try:
            self.call(name, *args)
        except (OutOfBlocksError, InvalidInputError):
            return False
        return True

    # -- requests -------------------------------------------------------------------------------

    def make_tokens(self, length: int) -> list[int]:
        """Tokens of a small vocabulary, often beginning like each other or like what a request ended with."""
        random, vocabulary = self.random, self.scenario.vocabulary
        if self.history and random.random() < 0.5:
            kept = random.choice(self.history)[: random.randint(1, length)]
            return kept + [random.randrange(vocabulary) for _ in range(length - len(kept))]
        head = [random.choice((300, 70_000))] * random.randrange(length + 1)
        return (head + [random.randrange(vocabulary) for _ in range(length)])[:length]

    def make_request(self, length: int | None = None) -> LlmRequest:
        random, scenario = self.random, self.scenario
        width = self.tokens_per_block
        if length is None:
            length = random.randint(1, scenario.max_prompt)
            if random.random() < 0.3:
                length = min(scenario.max_prompt, max(1, length // width * width + random.choice((-1, 0, 1))))
        options: dict[str, Any] = {"beam_width": random.randint(1, scenario.max_beam_width)}
        if scenario.constraints and random.random() < 0.5:
            options["cache_salt"] = random.choice((None, "", "a", "b"))
            options["lora_task_id"] = random.choice((None, 0, 1))
            if random.random() < 0.3:
                options["input_token_extra_ids"] = [random.randrange(2) for _ in range(length)]
            if random.random() < 0.3:
                options["multimodal_input"] = self.make_images(length)
        if scenario.retention and random.random() < 0.6:
            options["kv_cache_retention_config"] = self.make_retention(length)
        if random.random() < 0.05:
            options["is_dummy_request"] = True
        request = LlmRequest(self.next_id, self.make_tokens(length), 20, **options)
        self.next_id += 1
        return request

    def make_images(self, length: int) -> MultimodalInput:
        random = self.random
        position = random.randrange(length)
        words = [random.randrange(2), -1, 2**31 - 1, 0, 0, 0, 0, 7]
        return MultimodalInput([words], [position], [random.randint(1, length - position)])

    def make_retention(self, length: int) -> KvCacheRetentionConfig:
        random = self.random
        start = random.randrange(length)
        priority = random.choice((0, 20, 35, 50, 100))
        entry = TokenRangeRetentionConfig(start, random.choice((None, length + 3)), priority, random.choice((None, 5)))
        return KvCacheRetentionConfig([entry], random.choice((35, 10, 80)), random.choice((None, 3)))

    def pick(self, condition: Callable[[LlmRequest], bool] = lambda request: True) -> LlmRequest | None:
        """A live request, or None."""
        found = [request for request in self.live.values() if condition(request)]
        return self.random.choice(found) if found else None

    # -- actions --------------------------------------------------------------------------------

    def add_batch(self) -> None:
        """Admit one to three requests."""
        count = self.random.choice((1, 1, 1, 2, 3))
        if len(self.live) + count > self.scenario.max_live:
            return
        requests = [self.make_request() for _ in range(count)]
        infos = [(request.request_id, request.prompt_len, request.beam_width) for request in requests]
        expected = self.manager.probe_prefix_match_length(requests[0])
        if self.scenario.chunked or self.is_recurrent:
            for request in requests:
                request.set_context_chunk_size(self.tokens_per_block * (1 if self.is_recurrent else 2))
        if not self.try_call("add_sequence_batch", infos, requests):
            return
        if self.manager.enable_block_reuse:
            self.check_found(requests[0].prepopulated_prompt_len, expected, count)
        self.live.update({request.request_id: request for request in requests})

    def check_found(self, found: int, expected: int, count: int) -> None:
        """Admission finds what a probe did; of a batch others may need the block for a copy."""
        is_cut = count > 1 and not found % self.tokens_per_block and 0 < expected - found < self.tokens_per_block
        assert found == expected or is_cut, "probe and admission disagree"

    def step(self) -> None:
        """One iteration for every live request: a chunk of its prompt or a token."""
        for request in list(self.live.values()):
            if request.is_context_init_state:
                self.compute_chunk(request)
            else:
                self.generate(request)

    def compute_chunk(self, request: LlmRequest) -> None:
        """Compute the next chunk; the last one brings the first token."""
        start = request.context_current_position
        size = request.context_chunk_size
        if not size:
            width = self.tokens_per_block
            size = width if self.is_recurrent else width * self.random.randint(1, 3)
            if start % width:
                size -= start % width
            request.set_context_chunk_size(size)
        if self.is_recurrent:
            self.call("copy_linear_attention_block", request)
        self.engine.compute(request, start, start + request.context_chunk_size)
        request.move_to_next_context_chunk()
        if not request.context_remaining_length:
            request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
            if self.random.random() < 0.7:
                self.call("store_context_blocks", request)
            self.append(request, 1)

    def append(self, request: LlmRequest, count: int) -> None:
        for beam in range(request.beam_width):
            for _ in range(count):
                request.add_new_token(self.random.randrange(self.scenario.vocabulary), beam)

    def generate(self, request: LlmRequest) -> None:
        """Compute the newest token, with drafts behind it perhaps; take some of them, drop the rest."""
        num_drafts = 0
        if self.scenario.drafts and request.beam_width == 1:
            num_drafts = self.random.randrange(4)
        for done in range(1 + num_drafts):
            if not self.try_call("add_token", request.request_id):
                if not done:
                    return
                num_drafts = done - 1
                break
        sequence = self.manager.get_sequence(request.request_id)
        start = sequence.num_tokens - 1 - num_drafts
        drafts = [self.random.randrange(self.scenario.vocabulary) for _ in range(num_drafts)]
        if self.is_recurrent:
            self.call("copy_linear_attention_block", request)
        assert start == request.get_num_tokens() - 1
        self.engine.compute(request, start, start + 1 + num_drafts, drafts)
        taken = self.random.randint(0, num_drafts)
        for token in drafts[:taken]:
            request.add_new_token(token)
        self.append(request, 1)
        if num_drafts > taken:
            self.call("rewind_kv_cache", request.request_id, num_drafts - taken)

    def store_context(self) -> None:
        if request := self.pick():
            self.call("store_context_blocks", request)

    def store_new_block(self) -> None:
        if request := self.pick(lambda r: not r.is_context_init_state):
            self.call("store_new_block", request)

    def store_for_reuse(self) -> None:
        """Store a live sequence, perhaps with pins."""
        if request := self.pick():
            pin = self.scenario.pins and self.random.random() < 0.3
            ids = self.call("store_blocks_for_reuse", request.request_id, request, pin)
            assert bool(ids) <= pin
            self._note_pins(ids)

    def remove(self) -> None:
        """Remove a request that has computed its prompt."""
        if request := self.pick(lambda r: not r.is_context_init_state):
            self._remove(request)

    def remove_unfinished(self) -> None:
        """Cancel any request, also before its first step."""
        if request := self.pick():
            self._remove(request)

    def _remove(self, request: LlmRequest) -> None:
        self.history = [*self.history[-5:], request.get_tokens().tolist()]
        with_request = self.random.random() < 0.8
        self.call("remove_sequence", request.request_id, request if with_request else None)
        del self.live[request.request_id]

    def pause(self) -> None:
        """Preempt a request and let it wait as a new prompt."""
        if request := self.pick(lambda r: not r.is_dummy_request):
            self._remove(request)
            request.pause(self.scenario.max_prompt)
            if len(request.get_tokens()) < self.scenario.max_prompt and len(self.live) < self.scenario.max_live:
                info = (request.request_id, request.prompt_len, request.beam_width)
                if self.try_call("add_sequence_batch", [info], [request]):
                    self.live[request.request_id] = request

    def rewind(self) -> None:
        """Cut generated tokens off and go on with others."""
        request = self.pick(lambda r: r.beam_width == 1 and r.get_num_tokens() > r.prompt_len + 1)
        if request is None:
            return
        count = self.random.randint(1, request.get_num_tokens() - request.prompt_len - 1)
        if not self.try_call("rewind_kv_cache", request.request_id, count):
            return
        kept = request.get_tokens()[request.prompt_len : -count - 1]
        request.set_generated_tokens([[*kept, self.random.randrange(self.scenario.vocabulary)]])
        if self.has_lost_tokens(request):
            self._remove(request)

    def has_lost_tokens(self, request: LlmRequest) -> bool:
        """Whether a sliding window no longer holds what the next token attends to: it was not told of such a cut."""
        sequence = self.manager.get_sequence(request.request_id)
        for window, metadata in self.manager.window_sizes_metadata.items():
            first = sequence.get_num_front_blocks_removed(window) * self.tokens_per_block
            if metadata.is_swa and first > max(0, sequence.num_tokens + 1 - window):
                return True
        return False

    def pin(self) -> None:
        if request := self.pick():
            pinned = self.call("pin_blocks", request.request_id)
            if self.random.random() < 0.3:
                self.call("unpin_blocks_by_id", pinned)
            else:
                self._note_pins(pinned)

    def _note_pins(self, pinned: PinnedBlockIds) -> None:
        for window, ids in {self.manager.max_attention_window: pinned, **pinned.of_other_windows}.items():
            self.pins[window].update(ids)

    def unpin(self) -> None:
        window = self.random.choice(list(self.pins))
        if pins := self.pins[window]:
            ids = self.random.sample(list(pins.elements()), self.random.randint(1, pins.total()))
            self.call("unpin_blocks_by_id", ids, *(() if self.has_one_window else (window,)))
            pins -= Counter(ids)
            self.pins[window] = pins

    def offload_by_hand(self) -> None:
        """Move a block that nobody holds to the host, cached or not."""
        window = self.random.choice(list(self.scenario.windows))
        manager = self.manager.block_manager.window_block_managers[window]
        blocks = [b for b in manager.block_objects() if b.is_primary and not (b.has_refs or b.is_placeholder)]
        if blocks and manager.num_free_secondary_blocks:
            self.manager.block_manager.get_window_block_manager(window).claimer.offload_block(
                self.random.choice(blocks)
            )

    def truncate(self) -> None:
        request = self.pick()
        tokens = list(request.get_tokens()) if request else self.make_tokens(self.scenario.max_prompt)
        self.call("truncate_blocks", tokens, self.random.randrange(len(tokens) + 1))

    def reset(self) -> None:
        if self.random.random() < 0.2:
            self.call("reset_reuse_state")

    def refresh(self) -> None:
        self.clock.advance_ms(self.random.randrange(6))
        self.call("refresh_blocks")

    def simulate_scheduling(self) -> None:
        """A simulation of removals changes nothing, and predicts what removing really frees."""
        before = take_snapshot(self.manager, self.live.values(), self.events)
        manager = self.manager
        manager.start_scheduling()
        removed = self.random.sample(sorted(self.live), self.random.randint(0, len(self.live)))
        for request_id in removed:
            manager.scheduling_remove_sequence(request_id)
        for window in self.scenario.windows:
            assert manager.scheduling_has_free_blocks(manager.scheduling_num_free_blocks(window), window)
        after = take_snapshot(self.manager, self.live.values(), self.events)
        for snapshot in (before, after):
            for described in snapshot["windows"].values():
                del described["simulated"]
        assert not find_changes(before, after)
        if removed and self.random.random() < 0.3:
            expected = {window: manager.scheduling_num_free_blocks(window) for window in self.scenario.windows}
            for request_id in removed:
                self.call("remove_sequence", request_id, None)
                del self.live[request_id]
            assert manager.num_free_blocks_per_window_size == expected

    def query(self) -> None:
        """Nothing that only looks changes anything."""
        request = self.pick() or self.make_request()
        others = [*self.live.values(), request]
        before = take_snapshot(self.manager, others, self.events)
        manager = self.manager
        manager.probe_prefix_match_length(request)
        for window in self.scenario.windows:
            manager.verify_queue_integrity(window)
            manager.find_blocks_in_reuse_tree_by_block_key(array("i", request.get_tokens()).tobytes(), window)
        manager.get_kv_cache_stats()
        if self.has_one_window:
            manager.analyze_prefix_reuse(request)
        assert not find_changes(before, take_snapshot(self.manager, others, self.events))

    def read_events(self) -> None:
        """A listener knows exactly what is cached."""
        if self.events is None:
            return
        self.manager.flush_iteration_events()
        for event in self.manager.get_latest_events():
            self.mirror.apply(event)
        self.mirror.check(self.manager)

    # -- calls that must fail -------------------------------------------------------------------

    def provoke(self) -> None:
        """Make one of many wrong calls; it must raise and change nothing."""
        options = (
            self._add_too_much,
            self._add_known_id,
            self._add_id_twice,
            self._add_longer_than_tokens,
            self._call_unknown_id,
            self._rewind_too_far,
            self._unpin_what_is_not_pinned,
            self._remove_twice_in_simulation,
            self._add_with_wrong_lengths,
            self._let_connector_promise_too_much,
            self._leave_window_with_beams,
            self._ask_budget_of_unknown_window,
            self._give_wrong_request,
            self._add_image_without_place,
        )
        self.random.choice(options)()

    def _must_fail(self, kind: type[TrtkvError], name: str, *args: Any) -> None:
        try:
            self.call(name, *args)
        except kind:
            return
        raise AssertionError(f"{name}{_shorten(args)} did not raise {kind.__name__}")

    def _add_too_much(self) -> None:
        """More than there is, in the middle of a batch."""
        num_primary = min(primary for primary, _ in self.scenario.windows.values())
        requests: list[LlmRequest] = []
        needed = 0
        while needed <= num_primary:
            request = self.make_request(self.scenario.max_prompt)
            request = LlmRequest(request.request_id, [900 + request.request_id] * self.scenario.max_prompt)
            requests.append(request)
            needed += 1 if self.is_recurrent else ceil_div(request.prompt_len, self.tokens_per_block)
        infos = [(request.request_id, request.prompt_len, 1) for request in requests]
        self._must_fail(OutOfBlocksError, "add_sequence_batch", infos, requests)

    def _add_known_id(self) -> None:
        if request := self.pick():
            other = self.make_request(5)
            infos = [(other.request_id, 5, 1), (request.request_id, request.prompt_len, 1)]
            self._must_fail(InvalidInputError, "add_sequence_batch", infos, [other, request])

    def _add_id_twice(self) -> None:
        request = self.make_request(5)
        info = (request.request_id, 5, 1)
        self._must_fail(InvalidInputError, "add_sequence_batch", [info, info], [request, request])

    def _add_longer_than_tokens(self) -> None:
        first, second = self.make_request(3), self.make_request(5)
        infos = [(first.request_id, 3, 1), (second.request_id, 9, 1)]
        self._must_fail(InvalidInputError, "add_sequence_batch", infos, [first, second])

    def _add_with_wrong_lengths(self) -> None:
        request = self.make_request(5)
        self._must_fail(InvalidInputError, "add_sequence_batch", [(request.request_id, 0, 1)], [request])
        self._must_fail(InvalidInputError, "add_sequence_batch", [(request.request_id, 5, 99)], [request])
        self._must_fail(InvalidInputError, "add_sequence_batch", [(request.request_id, 5, 1)], [])

    def _call_unknown_id(self) -> None:
        unknown = self.next_id + 1000
        self._must_fail(InvalidInputError, "add_token", unknown)
        self._must_fail(InvalidInputError, "pin_blocks", unknown)
        self._must_fail(InvalidInputError, "store_new_block", LlmRequest(unknown, [1, 2]))
        self._must_fail(InvalidInputError, "scheduling_remove_sequence", unknown)
        self.call("rewind_kv_cache", unknown, 3)
        self.call("remove_sequence", unknown)

    def _rewind_too_far(self) -> None:
        if request := self.pick(lambda r: r.beam_width == 1):
            num_tokens = self.manager.get_token_count(request.request_id)
            self._must_fail(InvalidInputError, "rewind_kv_cache", request.request_id, num_tokens + 1)
            self._must_fail(InvalidInputError, "rewind_kv_cache", request.request_id, -1)

    def _unpin_what_is_not_pinned(self) -> None:
        if not self.has_one_window:
            self._must_fail(InvalidInputError, "unpin_blocks_by_id", [])
        for window, pins in self.pins.items():
            blocks = self.manager.block_manager.window_block_managers[window].block_objects()
            free = [b.block_id for b in blocks if not pins[b.block_id]]
            pinned = list(pins.elements())
            self._must_fail(InvalidInputError, "unpin_blocks_by_id", [*pinned, 10_000], window)
            if free:
                self._must_fail(InvalidInputError, "unpin_blocks_by_id", [*pinned, self.random.choice(free)], window)
            if pinned:
                self._must_fail(InvalidInputError, "unpin_blocks_by_id", [*pinned, pinned[0]], window)

    def _let_connector_promise_too_much(self) -> None:
        if self.connector is None or not self.manager.enable_block_reuse:
            return
        self.connector.num_tokens = 1000
        requests = [request for request in (self.make_request(4), self.make_request(9)) if not request.is_dummy_request]
        infos = [(request.request_id, request.prompt_len, request.beam_width) for request in requests]
        if requests:
            self._must_fail(TrtkvError, "add_sequence_batch", infos, requests)
        self.connector.num_tokens = 0

    def _leave_window_with_beams(self) -> None:
        """Several beams cannot leave a sliding window; the token that would make them is refused."""
        swa = [window for window, metadata in self.manager.window_sizes_metadata.items() if metadata.is_swa]
        if not swa or self.scenario.max_beam_width == 1 or len(self.live) >= self.scenario.max_live:
            return
        length = min(max(swa) + 2 * self.tokens_per_block, self.scenario.max_prompt)
        request = LlmRequest(self.next_id, self.make_tokens(length), beam_width=2)
        self.next_id += 1
        if self.try_call("add_sequence_batch", [(request.request_id, length, 2)], [request]):
            for _ in range(3 * self.tokens_per_block):
                if not self.try_call("add_token", request.request_id):
                    break
            self.call("remove_sequence", request.request_id)

    def _ask_budget_of_unknown_window(self) -> None:
        if request := self.pick(lambda r: r.is_generation_in_progress_state):
            request.set_estimated_reusable_tokens(5)
            self._must_fail(InvalidInputError, "get_needed_blocks_one_step", request, False, 12345)
            self._must_fail(InvalidInputError, "get_remaining_blocks_to_completion", request, 12345)

    def _give_wrong_request(self) -> None:
        if request := self.pick():
            other = self.make_request(5)
            info = [(other.request_id, 5, 1)]
            self._must_fail(InvalidInputError, "add_sequence_batch", info, [self.make_request(5)])
            self._must_fail(InvalidInputError, "remove_sequence", request.request_id, other)
            self._must_fail(InvalidInputError, "store_blocks_for_reuse", request.request_id, other)

    def _add_image_without_place(self) -> None:
        if self.manager.enable_block_reuse:
            request = LlmRequest(self.next_id, [1, 2, 3], multimodal_input=MultimodalInput([[0] * 8]))
            self._must_fail(InvalidInputError, "add_sequence_batch", [(self.next_id, 3, 1)], [request])

    def _remove_twice_in_simulation(self) -> None:
        if request := self.pick():
            self.manager.start_scheduling()
            self.manager.scheduling_remove_sequence(request.request_id)
            self._must_fail(InvalidInputError, "scheduling_remove_sequence", request.request_id)


def _shorten(args: tuple[Any, ...]) -> str:
    parts = []
    for arg in args:
        entries = arg if isinstance(arg, list) else [arg]
        shown = [
            f"r{e.request_id}{[t.tolist() for t in e._tokens]}" if isinstance(e, LlmRequest) else repr(e)
            for e in entries
        ]
        parts.append(", ".join(shown))
    return f"({'; '.join(parts)})"
