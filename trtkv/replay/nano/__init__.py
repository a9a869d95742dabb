"""A trace through nano-vllm's block manager."""
