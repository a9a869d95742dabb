"""A small engine on nano-vllm's block tables: Hugging Face causal models over paged tensors."""

from __future__ import annotations
