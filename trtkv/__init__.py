"""trtkv: TensorRT-LLM's KV-cache manager in Python."""
