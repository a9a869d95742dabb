"""NanoEngine: continuous batching over one model, one nano-vllm scheduler and its block tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from trtkv.errors import InvalidInputError
from trtkv.executor.attention_group import SequenceSlice
from trtkv.executor.model_engine import EngineInput, ModelEngine
from trtkv.executor.model_spec import read_model_spec
from trtkv.nano.config import SamplingSettings, SchedulerConfig
from trtkv.nano.scheduler import Scheduler
from trtkv.nano.sequence import Sequence as TokenSequence
from trtkv.nano_engine.block_table_memory import BlockTableMemory
from trtkv.nano_engine.nano_engine_stats import NanoEngineStats
from trtkv.nano_engine.sampler import Sampler


class NanoEngine:
    """Runs sequences to their end, step by step: schedule, one forward pass, sample, account.

    The model, a Hugging Face decoder, is switched to paged attention and must not be used elsewhere meanwhile. One
    device, no tensor parallelism, no CUDA graphs.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        config: SchedulerConfig,
        *,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> None:
        """``generator`` draws the tokens of sequences with a temperature above 0; None: torch's own."""
        self.stats = NanoEngineStats()
        self.scheduler = Scheduler(config)
        self.memory = BlockTableMemory(
            read_model_spec(model), config.num_kvcache_blocks, config.kvcache_block_size, device
        )
        self._model_engine = ModelEngine(model, self.memory)
        self._sampler = Sampler(generator)
        self._cut: TokenSequence | None = None
        """The sequence whose prompt is computed in part; there is at most one."""

    def is_finished(self) -> bool:
        """Whether no sequence is left."""
        return self.scheduler.is_finished()

    def add_request(self, prompt: Iterable[int], sampling_params: SamplingSettings | None = None) -> TokenSequence:
        """Queue a prompt; nothing is computed yet. The sequence shows its tokens as they come.

        Raises InvalidInputError for a prompt that could outgrow the pool, and changes nothing then.
        """
        seq = self._make_sequence(prompt, sampling_params)
        self.scheduler.add(seq)
        return seq

    def generate(
        self,
        prompts: Iterable[Iterable[int]],
        sampling_params: SamplingSettings | Sequence[SamplingSettings] | None = None,
    ) -> list[list[int]]:
        """Generated tokens of each prompt, in the order of the prompts.

        ``sampling_params``: one for all prompts, or one each. If a prompt is refused, none is queued. Sequences that
        were queued before go on too.
        """
        asked = list(prompts)
        settings = list(sampling_params) if isinstance(sampling_params, Sequence) else [sampling_params] * len(asked)
        if len(settings) != len(asked):
            raise InvalidInputError(f"{len(asked)} prompts but {len(settings)} sampling_params; give one, or one each")
        seqs = [self._make_sequence(prompt, params) for prompt, params in zip(asked, settings, strict=True)]
        for seq in seqs:
            self.scheduler.add(seq)
        while not all(seq.is_finished for seq in seqs):
            self.step()
        return [seq.completion_token_ids for seq in seqs]

    def _make_sequence(self, prompt: Iterable[int], sampling_params: SamplingSettings | None) -> TokenSequence:
        seq = TokenSequence(prompt, sampling_params, block_size=self.scheduler.block_size)
        num_blocks = len(self.scheduler.block_manager.blocks)
        num_stored = seq.num_prompt_tokens + seq.max_tokens - 1  # keys and values of the last token are not needed
        if num_stored > num_blocks * seq.block_size:
            raise InvalidInputError(
                f"{seq.num_prompt_tokens} prompt tokens and up to {seq.max_tokens} new ones need "
                f"{-(-num_stored // seq.block_size)} blocks, the pool has {num_blocks}: raise num_kvcache_blocks, "
                "shorten the prompt or lower max_tokens"
            )
        return seq

    @torch.inference_mode()
    def step(self) -> list[TokenSequence]:
        """Compute what the scheduler chooses: prompts or a part of one, else one token for each running sequence.

        Returns the sequences that ended. Raises InvalidInputError if none is left.
        """
        num_waiting = len(self.scheduler.waiting)
        seqs, is_prefill = self.scheduler.schedule()
        is_complete = [seq.num_cached_tokens + seq.num_scheduled_tokens == seq.num_tokens for seq in seqs]
        self._count(seqs, is_prefill, len(self.scheduler.waiting) - num_waiting)
        self._cut = None if is_complete[-1] else seqs[-1]
        self.memory.set_block_tables([seq.block_table for seq in seqs])
        logits = self._model_engine.forward(
            [_make_input(row, seq, wanted) for row, (seq, wanted) in enumerate(zip(seqs, is_complete, strict=True))]
        )
        temperatures = [seq.temperature for seq, wanted in zip(seqs, is_complete, strict=True) if wanted]
        sampled = iter(self._sampler.sample(logits, temperatures))
        # The scheduler ignores the token of a prompt that is not complete.
        tokens = [next(sampled) if wanted else 0 for wanted in is_complete]
        self.scheduler.postprocess(seqs, tokens, is_prefill)
        return [seq for seq in seqs if seq.is_finished]

    def _count(self, seqs: Sequence[TokenSequence], is_prefill: bool, num_more_waiting: int) -> None:
        """Count a step that is scheduled but not computed yet."""
        stats = self.stats
        stats.num_computed_tokens += sum(seq.num_scheduled_tokens for seq in seqs)
        if not is_prefill:
            stats.num_decode_steps += 1
            stats.num_preemptions += num_more_waiting
            return
        stats.num_prefill_steps += 1
        for seq in seqs:
            if seq is not self._cut:
                stats.num_prefix_hits += seq.num_cached_tokens > 0
                stats.num_cached_tokens += seq.num_cached_tokens
            stats.num_cut_prompts += seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens


def _make_input(row: int, seq: TokenSequence, wants_logits: bool) -> EngineInput:
    """The scheduled tokens of a sequence whose block table is in a row."""
    first, num_tokens = seq.num_cached_tokens, seq.num_scheduled_tokens
    return EngineInput(SequenceSlice(row, first, num_tokens), seq[first : first + num_tokens], int(wants_logits))
