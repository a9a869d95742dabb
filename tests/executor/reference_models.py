"""Tiny models of four shapes in double precision, and what they say without a paged cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.masking_utils import eager_mask

VOCABULARY = 61
WINDOW = 11

_SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "attn_implementation": "dense_double",
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def dense_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    softcap: float | None = None,
    **_kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Attention over the whole sequence with the mask of transformers; softmax in double, unlike its eager one."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.softmax(scores + attention_mask[:, :, :, : key.shape[2]], dim=-1)
    return torch.einsum("bhqk,bhkd->bqhd", weights, value), None


AttentionInterface.register("dense_double", dense_attention)
AttentionMaskInterface.register("dense_double", eager_mask)


def make_llama() -> torch.nn.Module:
    """Full attention, two query heads per K/V head."""
    return LlamaForCausalLM(LlamaConfig(**_SIZES, num_hidden_layers=2, num_key_value_heads=2))


def make_qwen() -> torch.nn.Module:
    """Norms of queries and keys; layers 0 and 1 see everything, layers 2 and 3 a window."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            **_SIZES,
            num_hidden_layers=3,
            num_key_value_heads=1,
            head_dim=6,
            use_sliding_window=True,
            sliding_window=WINDOW,
            max_window_layers=1,
        )
    )


def make_gemma() -> torch.nn.Module:
    """Sliding and full layers in turn, soft caps on scores and logits."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            **_SIZES,
            num_hidden_layers=2,
            num_key_value_heads=2,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=WINDOW,
        )
    )


def make_mixed_heads() -> torch.nn.Module:
    """Gemma 3 layers (two rotary bases, two windows) with 1, 2 and 4 K/V heads: three pools in two windows."""
    config = Gemma3TextConfig(
        **_SIZES,
        num_hidden_layers=3,
        num_key_value_heads=2,
        head_dim=6,
        query_pre_attn_scalar=6,
        sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    )
    model = Gemma3ForCausalLM(config)
    for layer, num_heads in ((0, 1), (2, 4)):
        attention = model.model.layers[layer].self_attn
        own = copy.deepcopy(config)
        own.num_key_value_heads = num_heads
        model.model.layers[layer].self_attn = type(attention)(own, layer)
        model.model.layers[layer].self_attn.config = config  # where the attention implementation is looked up
    model.post_init()
    return model


MAKERS = {"llama": make_llama, "qwen": make_qwen, "gemma": make_gemma, "mixed heads": make_mixed_heads}


@cache
def get_models(name: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model for the executor, and the same one to be run without paging."""
    torch.manual_seed(len(name))
    model = MAKERS[name]()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model = model.double().eval()
    return model, copy.deepcopy(model)


@torch.inference_mode()
def compute_logits(reference: torch.nn.Module, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [tokens, vocabulary] of a whole sequence in one pass."""
    result: torch.Tensor = reference(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return result


def find_greedy_mismatch(
    reference: torch.nn.Module, prompt: Sequence[int], output: Sequence[int], max_new: int, end: int | None
) -> str | None:
    """None if the model without paging says exactly this, else where it differs.

    One pass suffices: if every token is the model's choice after the tokens before it, the output is the one that
    generating token by token gives.
    """
    logits = compute_logits(reference, [*prompt, *output[:-1]])
    wanted = logits[len(prompt) - 1 :].argmax(dim=-1).tolist()
    for index, (token, expected) in enumerate(zip(output, wanted, strict=True)):
        if token != expected:
            return f"token {index} of {len(output)} is {token}, expected {expected}"
    stops = end is not None and end in output
    if stops != (output[-1] == end) or (stops and output.index(end) != len(output) - 1):
        return f"end token {end} is not the last of {list(output)}"
    return None if stops or len(output) == max_new else f"{len(output)} tokens instead of {max_new}"


def search_beams(
    reference: torch.nn.Module, prompt: Sequence[int], beam_width: int, max_new: int, end: int | None
) -> list[list[int]]:
    """Beam search by whole passes over every hypothesis: sum of log probabilities, ended hypotheses stay."""
    hypotheses: list[tuple[float, list[int]]] = [(0.0, [])]
    while len(hypotheses[0][1]) < max_new and not all(out and out[-1] == end for _, out in hypotheses):
        candidates = []
        for score, output in hypotheses:
            if output and output[-1] == end:
                candidates.append((score, [*output, end]))
                continue
            log_probs = torch.log_softmax(compute_logits(reference, [*prompt, *output])[-1], dim=-1)
            candidates += [(score + float(p), [*output, token]) for token, p in enumerate(log_probs)]
        candidates.sort(key=lambda candidate: -candidate[0])
        hypotheses = candidates[:beam_width]
    return [output for _, output in hypotheses]
