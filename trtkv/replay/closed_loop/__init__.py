"""TensorRT-LLM's manager in the closed loop: the loop, one run of it, what a run counted."""
