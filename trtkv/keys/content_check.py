"""Checks that all content of a request becomes part of its keys."""

from __future__ import annotations

from array import array

from trtkv.errors import InvalidInputError
from trtkv.keys.multimodal_keys import check_multimodal_input
from trtkv.records.llm_request import LlmRequest, check_salt


def check_content(request: LlmRequest) -> None:
    """Raise InvalidInputError for salts, extra ids and images that cannot be part of a key, or would be of none.

    Requests check what they are made of, but their fields can be set later. A cache calls this before it changes
    anything, so that no key fails to be built in the middle of a call.
    """
    if request.cache_salt is not None:
        check_salt(request.cache_salt)
    extra_ids = request.input_token_extra_ids
    if extra_ids is not None and not (isinstance(extra_ids, array) and extra_ids.typecode == "Q"):
        raise InvalidInputError(
            f"input_token_extra_ids of request {request.request_id} is {extra_ids!r}; give an array of type 'Q', or "
            "give the ids to the constructor"
        )
    if request.multimodal_input is not None:
        num_encoder_tokens = 0 if request.encoder_tokens is None else len(request.encoder_tokens)
        check_multimodal_input(request.multimodal_input, max(request.prompt_len, num_encoder_tokens))
