"""generate() of transformers over paged memory: tokens of the model without a cache, prefixes found across calls."""

from __future__ import annotations

import copy
import gc
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import ref

import pytest
import torch

from tests.executor.reference_models import MAKERS, VOCABULARY, find_greedy_mismatch, get_models
from tests.executor.workloads import CountingCopyEngine
from trtkv import ExecutorConfig, PagedCache, create_kv_cache_manager, read_model_spec
from trtkv.errors import InvalidInputError, OutOfBlocksError
from trtkv.inspection.invariants import check_invariants
from trtkv.transfers.copy_engine import OFFLOAD, ONBOARD
from trtkv.transfers.torch_copy_engine import TorchCopyEngine

PROMPT = [5, 17, 3, 44, 9, 28, 60, 2, 31, 7, 12, 50, 23]
Tokens = list[int]


class Setup:
    """A model that keeps its own attention, and a cache over pools that start as NaN."""

    def __init__(self, name: str, **options: Any) -> None:
        sizes: dict[str, Any] = {"max_sequence_length": 64, "num_primary_blocks": 64, "tokens_per_block": 4}
        self.reference = get_models(name)[1]
        self.model: Any = copy.deepcopy(self.reference)
        self.engine = CountingCopyEngine(TorchCopyEngine())
        config = ExecutorConfig(**(sizes | options))
        self.manager = create_kv_cache_manager(read_model_spec(self.model), config, self.engine)
        for pool in self.manager.pool_tensors.pools:
            assert pool.primary is not None
            pool.primary.view(torch.float64).fill_(float("nan"))
        self.cache = PagedCache(self.model, self.manager)
        self.num_columns = 0
        self.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: torch.nn.Module, __: object, named: dict[str, Any]) -> None:
        """Registered after the cache's hook, so that it sees what is really computed."""
        self.num_columns += named["input_ids"].numel()

    def generate(self, prompts: Sequence[Tokens], max_new: int, **options: Any) -> list[Tokens]:
        """Outputs of a batch, padded on the left."""
        ids, mask = pad(prompts)
        output = self.model.generate(
            ids, attention_mask=mask, cache=self.cache, max_new_tokens=max_new, do_sample=False, **options
        )
        rows: list[Tokens] = output[:, ids.shape[1] :].tolist()
        return rows

    def find_mismatches(self, prompts: Sequence[Tokens], outputs: Sequence[Tokens], max_new: int) -> list[str]:
        """Differences from the model without a cache."""
        found = [
            find_greedy_mismatch(self.reference, *pair, max_new, None) for pair in zip(prompts, outputs, strict=True)
        ]
        return [text for text in found if text]


def pad(prompts: Sequence[Tokens]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask; padding is a token that also occurs in prompts."""
    longest = max(map(len, prompts))
    gaps = [longest - len(prompt) for prompt in prompts]
    ids = [[7] * gap + list(prompt) for gap, prompt in zip(gaps, prompts, strict=True)]
    return torch.tensor(ids), torch.tensor([[0] * gap + [1] * (longest - gap) for gap in gaps])


def draw_prompts(rng: random.Random, seen: list[Tokens]) -> list[Tokens]:
    """One to four prompts that often continue, or leave in the middle of a block, what came before."""
    prompts = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        start = rng.choice(seen) if seen and rng.random() < 0.8 else []
        start = start[: rng.randint(0, len(start))] if rng.random() < 0.5 else start
        prompts.append([*start, *(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 12)))][:30])
    return prompts


@pytest.mark.parametrize("name", MAKERS)
def test_every_token_equals_that_of_the_model_without_a_cache(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(5):
        rng = random.Random(f"{name} {seed}")
        setup = Setup(
            name,
            num_primary_blocks=44,  # three prompts of 30 tokens, their outputs, and sources of copies
            num_secondary_blocks=rng.choice([20, 100]),
            tokens_per_block=rng.choice([3, 4]),
            max_batch_size=3,
            kv_layout=rng.choice(["HND", "NHD"]),
            copy_on_partial_reuse=rng.random() < 0.7,
        )
        seen: list[Tokens] = []
        for _ in range(16):
            prompts, max_new = draw_prompts(rng, seen), rng.randint(1, 8)
            outputs = setup.generate(prompts, max_new)
            assert setup.find_mismatches(prompts, outputs, max_new) == []
            check_invariants(setup.manager)
            seen += [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
        counts += setup.engine.counts
        counts["found"] += setup.cache.num_reused_tokens
        counts["prompts"] += setup.cache.num_prompt_tokens
        setup.cache.reset()
        assert not setup.manager.sequences
        check_invariants(setup.manager)
    assert counts["found"] > 0.3 * counts["prompts"]
    assert {kind: counts[kind] for kind in (OFFLOAD, ONBOARD, "partial") if counts[kind] < 5} == {}


def test_a_conversation_computes_only_what_is_new() -> None:
    setup = Setup("llama")
    (first,) = setup.generate([PROMPT], 5)
    setup.num_columns = 0
    follow_up = [*PROMPT, *first, 1, 2]
    outputs = setup.generate([follow_up], 3)
    assert setup.find_mismatches([follow_up], outputs, 3) == []
    assert setup.cache.num_reused_tokens == len(PROMPT) + 4  # all but the last output, which was not computed with
    assert setup.num_columns == len(follow_up) - len(PROMPT) - 4 + 2


def test_a_batch_computes_from_the_first_column_that_some_row_does_not_know() -> None:
    setup = Setup("gemma")
    setup.generate([PROMPT], 1)
    setup.num_columns = 0
    prompts = [[*PROMPT, 8], PROMPT[:6], [*PROMPT[:10], 1, 2, 3]]
    outputs = setup.generate(prompts, 4)
    assert setup.find_mismatches(prompts, outputs, 4) == []
    assert setup.num_columns == 3 * 3 + 3 * 3  # the third row knows 10 tokens after one column of padding, of 14


def test_the_old_name_of_the_argument_works() -> None:
    setup = Setup("llama")
    ids, mask = pad([PROMPT])
    with pytest.warns(FutureWarning, match="past_key_values"):
        output = setup.model.generate(
            ids, attention_mask=mask, past_key_values=setup.cache, max_new_tokens=4, do_sample=False
        )
    assert setup.find_mismatches([PROMPT], output[:, len(PROMPT) :].tolist(), 4) == []
    assert setup.cache.num_prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("name", MAKERS)
def test_beam_search_gives_the_beams_of_the_model_with_its_own_cache(name: str) -> None:
    setup = Setup(name)
    for prompts in ([PROMPT, PROMPT[:4]], [[*PROMPT[:11], 9]]):
        ids, mask = pad(prompts)
        options = {"attention_mask": mask, "max_new_tokens": 9, "num_beams": 3, "do_sample": False}
        expected = setup.model.generate(ids, **options)
        assert setup.model.generate(ids, cache=setup.cache, **options).tolist() == expected.tolist()
        check_invariants(setup.manager)
    again = [*expected[0].tolist(), 3]  # what beams have stored is right too
    assert setup.find_mismatches([again], setup.generate([again], 5), 5) == []
    assert setup.cache.num_reused_tokens > 3 * 10


def test_long_prompts_can_be_computed_in_parts() -> None:
    setup = Setup("llama")
    prompts = [PROMPT, [*PROMPT[:11], 1]]
    outputs = setup.generate(prompts, 4, prefill_chunk_size=5)
    assert setup.find_mismatches(prompts, outputs, 4) == []
    assert setup.generate(prompts, 4) == outputs
    with pytest.raises(InvalidInputError, match="slide windows"):
        Setup("gemma").generate([PROMPT], 4, prefill_chunk_size=5)


def test_passes_of_ones_own_go_on_where_the_last_ended() -> None:
    setup = Setup("qwen")
    expected = setup.reference(input_ids=torch.tensor([PROMPT])).logits[0]
    for begin, end in ((0, 6), (6, 7), (7, 8)):
        logits = setup.model(input_ids=torch.tensor([PROMPT[begin:end]]), cache=setup.cache).logits[0, -1]
        torch.testing.assert_close(logits, expected[end - 1])
    setup.cache.reset()
    logits = setup.model(input_ids=torch.tensor([PROMPT]), cache=setup.cache).logits[0]
    torch.testing.assert_close(logits, expected[8:])  # what is known is not computed again


def test_a_model_of_lower_precision_with_its_own_attention() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    for attention in ("sdpa", "eager"):
        model: Any = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=61, attn_implementation=attention)).eval()
        manager = create_kv_cache_manager(read_model_spec(model), ExecutorConfig(64, tokens_per_block=4))
        cache = PagedCache(model, manager)
        ids, mask = pad([PROMPT, PROMPT[:5]])
        options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
        expected = model.generate(ids, **options).tolist()
        assert [model.generate(ids, cache=cache, **options).tolist() for _ in range(2)] == [expected] * 2
        assert cache.num_reused_tokens == len(PROMPT) - 1 + 4


class BrokenError(Exception):
    """Raised in the middle of a pass."""


@pytest.fixture
def broken_layer() -> tuple[Setup, list[int]]:
    """The last layer fails while the list is not empty."""
    setup = Setup("llama")
    faults: list[int] = []

    def fail(*_: object) -> None:
        if faults and not faults.pop():
            raise BrokenError

    setup.model.model.layers[-1].register_forward_pre_hook(fail)
    return setup, faults


@pytest.mark.parametrize(("good_passes", "chunk", "num_found"), [(0, None, 0), (3, None, 12), (1, 5, 4)])
def test_nothing_of_a_pass_that_failed_is_found_later(
    broken_layer: tuple[Setup, list[int]], good_passes: int, chunk: int | None, num_found: int
) -> None:
    setup, faults = broken_layer
    faults += [0] + [1] * good_passes
    with pytest.raises(BrokenError):
        setup.generate([PROMPT], 8, prefill_chunk_size=chunk)
    assert not setup.manager.sequences
    check_invariants(setup.manager)
    assert setup.find_mismatches([PROMPT], setup.generate([PROMPT], 8), 8) == []
    assert setup.cache.num_reused_tokens == num_found


def test_wrong_calls_are_refused_and_leave_the_cache_usable() -> None:
    setup = Setup("llama", max_batch_size=2, num_primary_blocks=20)
    model, cache = setup.model, setup.cache
    ids, mask = pad([PROMPT, PROMPT[:5]])
    with pytest.raises(InvalidInputError, match="padded on the left"):
        model(input_ids=ids, attention_mask=mask.flip(1), cache=cache)
    with pytest.raises(InvalidInputError, match="padded on the left"):
        model(input_ids=ids, attention_mask=mask * 0, cache=cache)
    with pytest.raises(InvalidInputError, match="count the tokens of each row from 0"):
        model(input_ids=ids, attention_mask=mask, position_ids=torch.arange(13)[None], cache=cache)
    with pytest.raises(InvalidInputError, match="give whole prompts"):
        model(input_ids=ids[:, 5:], attention_mask=mask, cache=cache)
    with pytest.raises(InvalidInputError, match="arguments by name"):
        model(ids, cache=cache)
    with pytest.raises(InvalidInputError, match="3 rows, the manager was made for 2"):
        setup.generate([PROMPT] * 3, 1)
    with pytest.raises(InvalidInputError, match="max_sequence_length 64"):
        setup.generate([PROMPT * 5], 1)
    with pytest.raises(InvalidInputError, match="max_sequence_length 64"):
        setup.generate([PROMPT * 4], 20)
    with pytest.raises(OutOfBlocksError):
        setup.generate([[token % VOCABULARY for token in range(row, row + 50)] for row in (0, 30)], 1)
    with pytest.raises(InvalidInputError, match="called as a whole"):
        model.model(input_ids=ids, cache=cache)
    model(input_ids=ids, attention_mask=mask, cache=cache)
    with pytest.raises(InvalidInputError, match="go on after column 10"):
        model(input_ids=ids[:, :3], attention_mask=mask, cache=cache)
    for call in (cache.crop, cache.batch_repeat_interleave):
        with pytest.raises(InvalidInputError):
            call(1)
    assert setup.find_mismatches([PROMPT], setup.generate([PROMPT], 3), 3) == []
    check_invariants(setup.manager)


def test_a_model_works_without_the_cache_beside_and_after_it() -> None:
    setup = Setup("llama")
    expected = setup.generate([PROMPT], 4)
    ids, mask = pad([PROMPT])
    plain = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    assert setup.model.generate(ids, **plain)[:, len(PROMPT) :].tolist() == expected
    setup.cache.close()
    assert not setup.manager.sequences
    assert setup.model.generate(ids, **plain)[:, len(PROMPT) :].tolist() == expected


def test_a_dropped_cache_lets_its_memory_go() -> None:
    model: Any = copy.deepcopy(get_models("llama")[1])
    cache = PagedCache(model, create_kv_cache_manager(read_model_spec(model), ExecutorConfig(64)))
    ids, _ = pad([PROMPT])
    model.generate(ids, cache=cache, max_new_tokens=2)
    left = ref(cache)
    del cache
    gc.collect()
    assert left() is None
    assert model.generate(ids, max_new_tokens=2).shape == (1, len(PROMPT) + 2)
