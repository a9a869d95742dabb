"""Random loops in which whatever a capacity scheduler lets through is admitted and grown at once, in either order.

    python -m tests.stress.fitting_schedules [--schedules 10000] [--seed 0]

runs that many scheduling calls and counts the calls of the manager that found no block after all.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from trtkv.errors import OutOfBlocksError
from trtkv.manager.kv_cache_manager import KVCacheManager
from trtkv.records.llm_request import LlmRequest, LlmRequestState
from trtkv.records.retention_config import KvCacheRetentionConfig
from trtkv.scheduler.capacity_scheduler import CapacityScheduler
from trtkv.scheduler.micro_batch_scheduler import MicroBatchScheduler
from trtkv.scheduler.scheduler_config import CapacitySchedulerPolicy, ChunkingPolicy, ContextChunkingConfig

WIDTH = 4
LONGEST = 48
MAX_NUM_TOKENS = 20


class Setting(NamedTuple):
    """One random configuration."""

    windows: tuple[int, ...]
    num_blocks: int
    num_secondary: int
    max_beam_width: int
    max_drafts: int
    chunking: ChunkingPolicy | None
    policy: CapacitySchedulerPolicy
    two_steps_look_ahead: bool
    contexts_first: bool
    one_by_one: bool
    enable_block_reuse: bool
    enable_partial_reuse: bool
    copy_on_partial_reuse: bool


def draw_setting(rng: random.Random) -> Setting:
    windows = rng.choice([(LONGEST,), (LONGEST,), (8,), (16,), (8, LONGEST), (12, 20)])
    has_beams = windows == (LONGEST,) and rng.random() < 0.3
    return Setting(
        windows,
        rng.choice([14, 16, 20, 28]) * (2 if has_beams else 1),
        rng.choice([0, 0, 4, 16]),
        2 if has_beams else 1,
        0 if has_beams else rng.choice([0, 0, 3]),
        rng.choice([None, *ChunkingPolicy]),
        rng.choice(list(CapacitySchedulerPolicy)),
        rng.random() < 0.3,
        rng.random() < 0.5,
        rng.random() < 0.5,
        rng.random() < 0.9,
        rng.random() < 0.8,
        rng.random() < 0.7,
    )


class FittingLoop:
    """Runs requests under one setting; ``refusals`` lists what found no block though the scheduler let it through."""

    def __init__(self, rng: random.Random, setting: Setting) -> None:
        self.rng = rng
        self.setting = setting
        self.manager = KVCacheManager.from_arguments(
            [1] * len(setting.windows),
            1,
            WIDTH,
            dict.fromkeys(setting.windows, (setting.num_blocks, setting.num_secondary)),
            16,
            setting.max_beam_width,
            list(setting.windows),
            max_sequence_length=LONGEST,
            chunk_size=MAX_NUM_TOKENS,
            enable_block_reuse=setting.enable_block_reuse,
            enable_partial_reuse=setting.enable_partial_reuse,
            copy_on_partial_reuse=setting.copy_on_partial_reuse,
        )
        chunking = None if setting.chunking is None else ContextChunkingConfig(setting.chunking, WIDTH)
        self.capacity = CapacityScheduler(8, setting.policy, two_steps_look_ahead=setting.two_steps_look_ahead)
        self.micro_batch = MicroBatchScheduler(chunking)
        self.active: list[LlmRequest] = []
        self.refusals: list[str] = []
        self.counts: Counter[str] = Counter()
        self._roots = [[rng.randrange(50) for _ in range(LONGEST)] for _ in range(rng.randint(1, 3))]
        self._next_id = 0

    def arrive(self) -> None:
        """A request whose prompt often begins as others do, at a block's end or not."""
        rng = self.rng
        prompt = rng.choice(self._roots)[: rng.randint(1, LONGEST - 6)]
        prompt += [rng.randrange(50) for _ in range(rng.randint(0, 5))] if rng.random() < 0.6 else []
        prompt = prompt[: LONGEST - 1 - self.setting.max_drafts]
        request = LlmRequest(
            self._next_id,
            prompt,
            rng.randint(1, LONGEST - self.setting.max_drafts - len(prompt)),
            beam_width=rng.randint(1, self.setting.max_beam_width),
            kv_cache_retention_config=KvCacheRetentionConfig([], rng.randint(0, 100)) if rng.random() < 0.3 else None,
        )
        self._next_id += 1
        try:
            self.capacity.check_can_ever_fit(request, self.manager)
            self.micro_batch.check_can_ever_fit(request, self._max_num_tokens)
        except OutOfBlocksError:
            self.counts["too large"] += 1
        else:
            self.active.append(request)

    @property
    def _max_num_tokens(self) -> int | None:
        return None if self.setting.chunking is None else MAX_NUM_TOKENS

    def step(self) -> None:
        """Schedule, take all blocks of the step, compute."""
        manager = self.manager
        fitting, _, paused = self.capacity.schedule(self.active, manager)
        for request in paused:
            manager.remove_sequence(request.request_id, request)
            request.pause(10**9)
        self.counts["schedules"] += 1
        self.counts["pauses"] += len(paused)
        contexts, generating = self.micro_batch.schedule(fitting, (), 6, self._max_num_tokens)
        new = [request for request in contexts if request.is_first_context_chunk]
        self.counts["admissions"] += len(new)
        self.counts["tokens"] += len(generating)
        if self.setting.contexts_first:
            admitted = self._admit(new)
            grown = self._grow(generating)
        else:
            grown = self._grow(generating)
            admitted = self._admit(new)
        self._compute([request for request in contexts if request not in new] + admitted, grown)

    def _admit(self, requests: Sequence[LlmRequest]) -> list[LlmRequest]:
        """Those that were admitted."""
        batches = [[request] for request in requests] if self.setting.one_by_one else [list(requests)]
        admitted: list[LlmRequest] = []
        for batch in batches:
            infos = [(request.request_id, request.prompt_len, request.beam_width) for request in batch]
            try:
                self.manager.add_sequence_batch(infos, batch)
            except OutOfBlocksError as error:
                self.refusals.append(str(error))
            else:
                admitted += batch
        return admitted

    def _grow(self, requests: Sequence[LlmRequest]) -> dict[LlmRequest, int]:
        """Slots for the next token and the drafts; drafts by request."""
        grown: dict[LlmRequest, int] = {}
        for request in requests:
            num_drafts = self.manager.get_num_step_drafts(request, request.num_draft_tokens)
            try:
                for _ in range(1 + num_drafts):
                    self.manager.add_token(request.request_id)
            except OutOfBlocksError as error:
                self.refusals.append(str(error))
                break
            grown[request] = num_drafts
        return grown

    def _compute(self, contexts: Sequence[LlmRequest], grown: dict[LlmRequest, int]) -> None:
        for request in contexts:
            request.move_to_next_context_chunk()
            if not request.context_remaining_length:
                request.set_state(LlmRequestState.GENERATION_IN_PROGRESS)
                self._append(request, 1)
            self.manager.store_context_blocks(request)
        for request, num_drafts in grown.items():
            num_accepted = self.rng.randint(0, num_drafts)
            if num_drafts > num_accepted:
                self.manager.rewind_kv_cache(request.request_id, num_drafts - num_accepted)
            self._append(request, 1 + num_accepted)
        for request in (*contexts, *grown):
            if request.state is LlmRequestState.GENERATION_COMPLETE:
                self.manager.remove_sequence(request.request_id, request)
                self.active.remove(request)
            elif request.is_generation_in_progress_state:
                request.set_num_draft_tokens(self.rng.randint(0, self.setting.max_drafts))

    def _append(self, request: LlmRequest, num_tokens: int) -> None:
        num_left = request.prompt_len + request.max_new_tokens - request.get_num_tokens()
        for _ in range(min(num_tokens, num_left)):
            request.add_new_tokens([[self.rng.randrange(50)] for _ in range(request.beam_width)])
        if num_tokens >= num_left:
            request.set_state(LlmRequestState.GENERATION_COMPLETE)


def run_loop(seed: int, num_requests: int = 14) -> FittingLoop:
    """All requests of one random setting, until they are done, are refused, or 200 steps have passed."""
    rng = random.Random(seed)
    loop = FittingLoop(rng, draw_setting(rng))
    to_come = num_requests
    for _ in range(200):
        for _ in range(min(to_come, rng.choice([0, 1, 1, 4]))):
            to_come -= 1
            loop.arrive()
        if loop.active:
            loop.step()
        if loop.refusals or (not loop.active and not to_come):
            break
    return loop


def main() -> int:
    """Run many loops; print what was done, and each refusal with its seed and setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    seed = arguments.seed
    while counts["schedules"] < arguments.schedules:
        loop = run_loop(seed)
        counts += loop.counts
        counts["settings"] += 1
        for refusal in loop.refusals:
            counts["refusals"] += 1
            print(f"seed {seed}: {refusal}\n  {loop.setting}")
        seed += 1
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()), f"; refusals: {counts['refusals']}")
    return int(counts["refusals"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
