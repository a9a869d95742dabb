"""Random programs on two workers, heard through every listener form, and look-ups compared with the managers' own."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any, Protocol

from tests.stress.random_program import MAX_SEQUENCE_LENGTH, RandomProgram
from trtkv import KVCacheManager, LlmRequest, MultimodalInput
from trtkv.common import RECURRENT_STATES
from trtkv.events.kv_cache_event_manager import KVCacheEventManager
from trtkv.events.kv_cache_events import KVCacheEvent
from trtkv.events.router_index import RouterIndex, WorkerRank
from trtkv.exporters.trtllm_json import event_from_dict, events_to_dicts
from trtkv.exporters.vllm_events import VllmEventEncoder, VllmEventTranslator, WireBatch, decode_batch
from trtkv.exporters.vllm_listener import VllmListener

FORMS = ("events", "json", "vllm")
NUM_LIVES = 2
NUM_ROUNDS = 5
LATE, LOST, REPEATED, SAME_EPOCH = 0.2, 0.15, 0.3, 0.3


class IdentityProgram(RandomProgram):
    """Requests of which most have an adapter, a salt, extra ids or one or two images, all from small sets.

    No adapter has the number of an extra id: the hashes of two blocks of one token, one with the adapter, the other
    with the extra id, are equal in the original's formula.
    """

    def draw_request(self) -> LlmRequest:
        self.next_id += 1
        return self.make_request(self.next_id, self.draw_prompt())

    def make_request(self, request_id: int, prompt: list[int]) -> LlmRequest:
        rng = self.rng
        kind = rng.choice(["plain", "adapter", "salt", "extra", "image", "image", "all"])
        image = None
        if kind in ("image", "all"):
            starts = sorted(rng.sample(range(len(prompt)), min(len(prompt), rng.randint(1, 2))))
            ends = [*starts[1:], len(prompt)]
            lengths = [min(5, max(1, end - start - 1)) for start, end in zip(starts, ends, strict=True)]
            names: list[str | None] = [rng.choice([None, "cat"]) for _ in starts]
            image = MultimodalInput([[rng.randint(0, 1)] * 8 for _ in starts], starts, lengths, names)
        return LlmRequest(
            request_id,
            prompt,
            MAX_SEQUENCE_LENGTH - len(prompt),
            lora_task_id=rng.choice([5, 7]) if kind in ("adapter", "all") else None,
            cache_salt=rng.choice(["cat", "b"]) if kind in ("salt", "all") else None,
            input_token_extra_ids=[rng.randint(0, 1)] * len(prompt) if kind in ("extra", "all") else None,
            multimodal_input=image,
            kv_cache_retention_config=self.draw_retention(),
            beam_width=rng.randint(1, self.shape.max_beam_width),
        )


class Feed(Protocol):
    """One listener form: carries events of one worker into its index, with faults."""

    index: RouterIndex

    def restart(self, has_new_epoch: bool) -> None:
        """The worker starts anew."""

    def carry(self, events: list[KVCacheEvent], rng: random.Random, loss: float) -> None:
        """Bring events, or lose some with a probability, and bring some of the earlier ones again."""

    @property
    def is_current(self) -> bool:
        """Whether a loss after the last arrival can be ruled out, as the feed cannot see it."""

    def repair(self, manager: KVCacheManager) -> bool:
        """Resynchronise if the index asks for it; whether it did."""


class EventFeed:
    """Events as records, or through TensorRT-LLM's JSON."""

    def __init__(self, index: RouterIndex, name: WorkerRank, as_json: bool) -> None:
        self.index = index
        self._name = name
        self._as_json = as_json
        self._sent: list[KVCacheEvent] = []
        self._can_lose_start = True
        self.is_current = False

    def restart(self, has_new_epoch: bool) -> None:
        self._sent = []
        self._can_lose_start = has_new_epoch  # else nothing tells a restart of which the beginning is lost

    def carry(self, events: list[KVCacheEvent], rng: random.Random, loss: float) -> None:
        portion = list(events)
        if portion and (self._sent or self._can_lose_start) and rng.random() < loss:
            del portion[: rng.randint(1, len(portion))]
        if self._sent and rng.random() < REPEATED:
            start = rng.randrange(len(self._sent))
            portion = self._sent[start : start + rng.randint(1, 9)] + portion
        self._sent += events
        self.is_current = loss == 0 and bool(events)
        self.index.apply(self._name.worker, self._pass_on(portion))

    def repair(self, manager: KVCacheManager) -> bool:
        if self._name not in self.index.needs_resync:
            return False
        self.index.resync(self._name.worker, self._pass_on(manager.get_cached_block_events()))
        return True

    def _pass_on(self, events: list[KVCacheEvent]) -> list[KVCacheEvent]:
        if not self._as_json:
            return events
        return [event_from_dict(value) for value in json.loads(json.dumps(events_to_dicts(events)))]


class VllmFeed:
    """Numbered messages in vLLM's form."""

    def __init__(self, index: RouterIndex, name: WorkerRank, program: IdentityProgram, report_media: bool) -> None:
        self.index = index
        self._rank = name.rank
        self._windows = sorted(program.windows, reverse=True)
        self._width = program.shape.tokens_per_block
        self._report_media = report_media
        self._listener = VllmListener(index, name.worker, self._windows)
        self._now = 0.0
        self._can_lose_start = True
        self._start()

    def restart(self, has_new_epoch: bool) -> None:
        self._can_lose_start = False  # the numbers of the messages may go on by chance where the old ones ended
        self._start()

    def _start(self) -> None:
        self._translator = VllmEventTranslator(
            self._width, self._windows, include_partial_blocks=True, report_media=self._report_media
        )
        self._encoder = VllmEventEncoder(self._translator, clock=self._clock)
        self._sent: list[bytes] = []
        self._num_taken = 0

    @property
    def is_current(self) -> bool:
        return self._num_taken == len(self._sent)

    def _clock(self) -> float:
        self._now += 1
        return self._now

    def carry(self, events: list[KVCacheEvent], rng: random.Random, loss: float) -> None:
        for payload in self._encoder.encode(events).values():
            can_lose = self._sent or self._can_lose_start
            self._sent.append(payload)
            if not can_lose or rng.random() >= loss:
                self._take(len(self._sent) - 1)
                self._num_taken = len(self._sent)
        if self._num_taken > 1 and rng.random() < REPEATED:
            self._take(rng.randrange(self._num_taken - 1))

    def _take(self, sequence: int) -> None:
        self._listener.take(sequence, decode_batch(self._sent[sequence]))

    def repair(self, manager: KVCacheManager) -> bool:
        if not self._listener.needs_resync:
            return False
        wire = self._translator.translate_snapshot(manager.get_cached_block_events())
        self._sent.append(self._encoder.encode_batch(WireBatch(self._clock(), wire[self._rank], self._rank)))
        self._take(len(self._sent) - 1)
        return not self._listener.needs_resync


class ListenedWorker:
    """A program, and the feeds that carry its events."""

    def __init__(self, name: WorkerRank, seed: int, rng: random.Random, indexes: dict[str, RouterIndex]) -> None:
        self.name = name
        self._seed, self._rng = seed, rng
        self._epoch = 1
        self.program = self._start()
        self.feeds: dict[str, Any] = {
            "events": EventFeed(indexes["events"], name, False),
            "json": EventFeed(indexes["json"], name, True),
            "vllm": VllmFeed(indexes["vllm"], name, self.program, rng.random() < 0.5),
        }

    def _start(self) -> IdentityProgram:
        events = KVCacheEventManager(100_000, self.name.rank, epoch=self._epoch)
        program = IdentityProgram(self._seed, events, enable_partial_reuse=False)
        program.rng = random.Random(self._rng.random())
        return program

    def restart(self, prompts: list[list[int]]) -> None:
        has_new_epoch = self._rng.random() >= SAME_EPOCH
        self._epoch += has_new_epoch
        self.program = self._start()
        self.program.prompts = prompts
        for feed in self.feeds.values():
            feed.restart(has_new_epoch)

    def read(self, num_steps: int) -> list[KVCacheEvent]:
        for _ in range(num_steps):
            self.program.step()
        self.program.manager.flush_iteration_events()
        return self.program.manager.get_latest_events(0)

    def run(self, is_late: bool, counts: Counter[str]) -> None:
        """Some steps with losses, then some whose events all arrive, so that holes show; then repairs."""
        for loss in [1.0 if is_late else LOST] * 2:
            self._carry(12, loss)
        self._carry(12, 0)
        while not all(feed.is_current for feed in self.feeds.values()):
            self._carry(4, 0)
        for form, feed in self.feeds.items():
            counts[f"{form} repaired"] += feed.repair(self.program.manager)

    def _carry(self, num_steps: int, loss: float) -> None:
        events = self.read(num_steps)
        for feed in self.feeds.values():
            feed.carry(events, self._rng, loss)


def compare_lookups(seed: int, num_lookups: int) -> Counter[str]:
    """Run one pair of programs; ``num_lookups`` in every form. Returns counts; raises AssertionError if any differ."""
    rng = random.Random(seed)
    width = IdentityProgram(seed, None).shape.tokens_per_block
    indexes = {form: RouterIndex(width, MAX_SEQUENCE_LENGTH, enable_partial_reuse=False) for form in FORMS}
    names = (WorkerRank("left"), WorkerRank("right", 3))
    workers = [ListenedWorker(name, seed, rng, indexes) for name in names]
    prompts = workers[0].program.prompts
    workers[1].program.prompts = prompts
    counts: Counter[str] = Counter()
    for round_ in range(NUM_LIVES * NUM_ROUNDS):
        if round_ == NUM_ROUNDS:
            workers[rng.randrange(2)].restart(prompts)
        for worker in workers:
            worker.run(rng.random() < LATE and round_ % NUM_ROUNDS == 0, counts)
        for _ in range(num_lookups // (NUM_LIVES * NUM_ROUNDS)):
            _compare_one(
                f"seed {seed}, round {round_}", draw_lookup(workers[rng.randrange(2)].program), workers, counts
            )
    counts["recurrent"] += RECURRENT_STATES in workers[0].program.windows
    return counts


def draw_lookup(program: IdentityProgram) -> LlmRequest:
    """A prompt that was seen, cut or continued, under what may have come with it."""
    rng = program.rng
    prompt = list(rng.choice(program.prompts)) if program.prompts else []
    if rng.random() < 0.2:
        del prompt[rng.randint(0, len(prompt)) :]
    prompt += [rng.randint(0, 2) for _ in range(rng.choice([1, 1, 2, 5]))]
    if rng.random() < 0.8 and program.requests:
        seen = rng.choice(list(program.requests.values()))
        seen_tokens = list(seen.get_tokens(0))[: MAX_SEQUENCE_LENGTH - 12]
        extra_ids = seen.input_token_extra_ids
        if extra_ids is not None:  # generated tokens have extra id 0
            extra_ids = [*extra_ids, *[0] * len(seen_tokens)][: len(seen_tokens) + 1]
        return LlmRequest(
            10**6,
            [*seen_tokens, 0],
            4,
            lora_task_id=seen.lora_task_id,
            cache_salt=seen.cache_salt,
            input_token_extra_ids=extra_ids,
            multimodal_input=seen.multimodal_input,
        )
    return program.make_request(10**6, prompt[: MAX_SEQUENCE_LENGTH - 12])


def _compare_one(where: str, request: LlmRequest, workers: list[ListenedWorker], counts: Counter[str]) -> None:
    own = {worker.name: worker.program.manager.probe_prefix_match_length(request) for worker in workers}
    own = {name: found for name, found in own.items() if found}
    hashes = next(iter(workers[0].feeds.values())).index.hash_request(request)
    for form in FORMS:
        found = workers[0].feeds[form].index.find(*hashes)
        assert found == own, f"{where}, {form}: {request.get_tokens(0)} found {found}, managers {own}"
        counts[f"{form} lookups"] += 1
    counts["non-empty"] += bool(own)
    counts["lookups"] += 1
