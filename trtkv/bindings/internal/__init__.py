"""``tensorrt_llm.bindings.internal``."""

from trtkv.bindings.internal import algorithms as algorithms
from trtkv.bindings.internal import batch_manager as batch_manager
from trtkv.bindings.internal import runtime as runtime
from trtkv.bindings.internal import testing as testing
