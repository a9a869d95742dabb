"""Single behaviours of the executor."""

from __future__ import annotations

import pytest
import torch

from tests.executor.reference_models import (
    VOCABULARY,
    WINDOW,
    compute_logits,
    find_greedy_mismatch,
    get_models,
    search_beams,
)
from tests.kernels.host_launcher import find_compiler, launch_on_host
from trtkv.common import DataType
from trtkv.errors import CapacityError, ConfigurationError, InvalidInputError, OutOfBlocksError
from trtkv.executor.executor import PyTorchExecutor
from trtkv.executor.executor_config import Drafter, ExecutorConfig, create_kv_cache_manager
from trtkv.executor.model_spec import ModelSpec, read_model_spec
from trtkv.kernels.kernel_launch import Backend
from trtkv.transfers.torch_copy_engine import TorchCopyEngine

PROMPT = [5, 17, 3, 44, 9, 28, 60, 2, 31, 7, 12, 50, 23]


def make_executor(
    name: str, drafter: Drafter | None = None, backend: Backend = None, **options: object
) -> PyTorchExecutor:
    model = get_models(name)[0]
    sizes: dict[str, object] = {"max_sequence_length": 64, "num_primary_blocks": 64, "tokens_per_block": 4}
    config = ExecutorConfig(**(sizes | options))  # type: ignore[arg-type]
    return PyTorchExecutor(model, create_kv_cache_manager(read_model_spec(model), config), config, drafter, backend)


def test_model_layers_are_read_with_heads_and_windows() -> None:
    assert read_model_spec(get_models("llama")[0]) == ModelSpec((2, 2), 6, (None, None), torch.float64)
    assert read_model_spec(get_models("qwen")[0]) == ModelSpec((1, 1, 1), 6, (None, WINDOW, WINDOW), torch.float64)
    assert read_model_spec(get_models("gemma")[0]) == ModelSpec((2, 2), 8, (WINDOW, None), torch.float64)
    assert read_model_spec(get_models("mixed heads")[0]) == ModelSpec((1, 2, 4), 6, (None, WINDOW, None), torch.float64)
    assert ModelSpec((1,), 8, (None,), torch.bfloat16).pool_dtype is DataType.BF16
    with pytest.raises(ConfigurationError, match="attention layers"):
        read_model_spec(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigurationError, match="cannot be kept"):
        _ = ModelSpec((1,), 8, (None,), torch.int32).pool_dtype


def test_head_counts_and_windows_become_pools() -> None:
    manager = make_executor("mixed heads", max_draft_tokens=3).manager
    assert list(manager.window_sizes_metadata) == [WINDOW + 3, 64]
    assert [(pool.window_size, pool.num_kv_heads) for pool in manager.pool_tensors.pools] == [
        (WINDOW + 3, 2),
        (64, 1),
        (64, 4),
    ]


def test_a_second_request_computes_only_what_is_new() -> None:
    executor = make_executor("llama")
    executor.submit(PROMPT, 3)
    executor.run()
    before = executor.stats.num_computed_tokens
    executor.submit([*PROMPT[:10], 1, 1], 1)
    executor.run()
    assert executor.stats.num_reused_tokens == 10
    assert executor.stats.num_computed_tokens - before == 2


def test_a_prompt_is_computed_in_chunks() -> None:
    executor = make_executor("llama", chunk_unit_size=4, max_num_tokens=4)
    executor.submit(PROMPT, 1)
    sizes = []
    while executor.num_active:
        before = executor.stats.num_computed_tokens
        executor.step()
        sizes.append(executor.stats.num_computed_tokens - before)
    assert sizes == [4, 4, 4, 1]


def test_generation_goes_on_while_another_prompt_is_computed() -> None:
    executor = make_executor("llama", chunk_unit_size=4, max_num_tokens=5)
    first = executor.submit(PROMPT[:3], 6)
    executor.step()
    second = executor.submit(list(reversed(PROMPT)), 2)
    computed = []
    while executor.num_active:
        before = executor.stats.num_computed_tokens
        executor.step()
        computed.append(executor.stats.num_computed_tokens - before)
    assert computed[:3] == [5, 5, 5]  # a token of one request and a chunk of the other
    assert first != second


def test_right_drafts_save_steps_and_wrong_ones_are_rewound() -> None:
    reference = get_models("gemma")[1]
    executor = make_executor("gemma")
    executor.submit(PROMPT, 9)
    (result,) = executor.run().values()
    whole = [*PROMPT, *result.token_ids[0]]
    outcomes = {}
    for kind in ("right", "wrong"):

        def draft(tokens: list[int], limit: int, is_right: bool = kind == "right") -> list[int]:
            right = whole[len(tokens) : len(tokens) + limit]
            return right if is_right else [(token + 1) % VOCABULARY for token in right]

        executor = make_executor("gemma", draft, max_draft_tokens=3)
        executor.submit(PROMPT, 9)
        (again,) = executor.run().values()
        assert again.token_ids == result.token_ids
        outcomes[kind] = executor.stats
    assert outcomes["right"].num_steps == 3  # prompt and first token, then 4 + 4
    assert outcomes["right"].num_rewound_tokens == 0
    assert outcomes["wrong"].num_steps == 9
    assert outcomes["wrong"].num_rewound_tokens == outcomes["wrong"].num_draft_tokens > 0
    assert find_greedy_mismatch(reference, PROMPT, result.token_ids[0], 9, None) is None


def test_an_end_token_ends_the_output_also_inside_accepted_drafts() -> None:
    executor = make_executor("llama")
    executor.submit(PROMPT, 8)
    (result,) = executor.run().values()
    output = result.token_ids[0]
    end = output[3]
    for drafter in (None, lambda tokens, limit: [*PROMPT, *output][len(tokens) : len(tokens) + limit]):
        executor = make_executor("llama", drafter, max_draft_tokens=4)
        executor.submit(PROMPT, 8, end_token_id=end)
        (again,) = executor.run().values()
        assert again.token_ids == [output[: output.index(end) + 1]]


def test_beams_come_best_first_with_their_scores() -> None:
    reference = get_models("llama")[1]
    executor = make_executor("llama", max_beam_width=3)
    executor.submit(PROMPT, 6, beam_width=3)
    (result,) = executor.run().values()
    assert result.token_ids == search_beams(reference, PROMPT, 3, 6, None)
    assert result.scores == sorted(result.scores, reverse=True)
    logits = compute_logits(reference, [*PROMPT, *result.token_ids[0]])
    log_probs = torch.log_softmax(logits, dim=-1)
    score = sum(float(log_probs[len(PROMPT) - 1 + index, token]) for index, token in enumerate(result.token_ids[0]))
    assert result.scores[0] == pytest.approx(score)


def test_salted_prompts_share_nothing() -> None:
    executor = make_executor("llama")
    for salt in ("a", "b", "a"):
        executor.submit(PROMPT, 1, cache_salt=salt)
        executor.run()
    assert executor.stats.num_reused_tokens == len(PROMPT) - 1


@pytest.mark.skipif(find_compiler() is None, reason="no host C++ compiler to build the kernels with")
@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
def test_offsets_written_by_the_kernel_lead_to_the_same_tokens(kv_layout: str) -> None:
    outputs = []
    for backend in ("reference", launch_on_host):
        executor = make_executor("mixed heads", backend=backend, kv_layout=kv_layout)
        for shift in range(3):
            executor.submit([*PROMPT[shift:], shift], 12)
        outputs.append(executor.run())
        assert executor.stats.table_bytes_sent > 0
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_of_lower_precision_agrees_with_transformers_own_attention(dtype: torch.dtype) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=61)
    ).to(dtype)
    model.eval()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0, -1].float()
    config = ExecutorConfig(max_sequence_length=64, tokens_per_block=4)
    manager = create_kv_cache_manager(read_model_spec(model), config)
    executor = PyTorchExecutor(model, manager, config)
    request_id = executor.submit(PROMPT, 1)
    (token,) = executor.run()[request_id].token_ids[0]
    assert manager.get_buffers(0).dtype == dtype
    tolerance = 1e-4 if dtype is torch.float32 else 0.02
    assert expected[token] >= expected.max() - tolerance


def test_requests_that_could_never_run_are_refused_at_once() -> None:
    executor = make_executor("llama", num_primary_blocks=6, max_beam_width=2)
    with pytest.raises(InvalidInputError, match="max_sequence_length"):
        executor.submit(range(60), 10)
    with pytest.raises(InvalidInputError, match="at least 1"):
        executor.submit([], 10)
    with pytest.raises(InvalidInputError, match="at least 1"):
        executor.submit(PROMPT, 0)
    with pytest.raises(InvalidInputError, match="beam width"):
        executor.submit(PROMPT, 2, beam_width=3)
    with pytest.raises(OutOfBlocksError):
        executor.submit([1] * 30, 10)
    assert executor.num_active == 0
    small = make_executor("llama", max_num_tokens=8)
    with pytest.raises(CapacityError, match="max_num_tokens"):
        small.submit(PROMPT, 2)


def test_wrong_manager_and_engine_choice_are_errors_not_results() -> None:
    model = get_models("llama")[0]
    config = ExecutorConfig(max_sequence_length=64)
    manager = create_kv_cache_manager(read_model_spec(model), config, TorchCopyEngine())
    manager.release_pools()
    with pytest.raises(InvalidInputError, match="allocate_pools"):
        PyTorchExecutor(model, manager, config)
