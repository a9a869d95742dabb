"""One key builder serves probing, admission, storing, hashes and events; and what must not be shared never is."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from tests.builders import WINDOW, make_event_manager, make_kv_cache_manager, make_request
from tests.stress.manager_tree import read_trees
from tests.stress.random_program import RandomProgram
from tests.users.serving import admit, compute, serve
from trtkv.common import KeyForm
from trtkv.errors import InvalidInputError, OutOfBlocksError, TrtkvError
from trtkv.events.kv_cache_events import KVCacheStoredData
from trtkv.keys.block_key import BlockKey
from trtkv.keys.key_builder import build_block_keys
from trtkv.keys.key_hash import hash_block_key
from trtkv.records.llm_request import LlmRequest, MultimodalInput

IMAGE_TOKEN = 9


@dataclass(frozen=True)
class Content:
    """A prompt and everything else that decides what its keys and values are."""

    tokens: tuple[int, ...]
    lora_task_id: int | None = None
    cache_salt: str | None = None
    extra_ids: tuple[int, ...] | None = None
    image: int | None = None
    image_position: int = 0
    image_length: int = 0

    def make_request(self, request_id: int) -> LlmRequest:
        image = None
        if self.image is not None:
            image = MultimodalInput([[self.image] * 8], [self.image_position], [self.image_length])
        return make_request(
            request_id,
            self.tokens,
            lora_task_id=self.lora_task_id,
            cache_salt=self.cache_salt,
            input_token_extra_ids=self.extra_ids,
            multimodal_input=image,
        )


def draw_content(rng: random.Random) -> Content:
    length = rng.randint(1, 30)
    content = Content(tuple(rng.randint(0, 1) for _ in range(length)))
    if rng.random() < 0.3:
        content = replace(content, lora_task_id=rng.randint(0, 1))
    if rng.random() < 0.3:
        content = replace(content, cache_salt=rng.choice(["", "a", "b"]))
    if rng.random() < 0.3:
        content = replace(content, extra_ids=tuple(rng.randint(0, 1) for _ in range(length)))
    if rng.random() < 0.3:
        first, end = rng.randint(0, length - 1), rng.randint(1, length)
        if first < end:
            # Places of an image have a token of their own, whatever the image shows.
            tokens = content.tokens[:first] + (IMAGE_TOKEN,) * (end - first) + content.tokens[end:]
            image = rng.randint(0, 1)
            content = replace(content, tokens=tokens, image=image, image_position=first, image_length=end - first)
    return content


def describe_prefix(content: Content, num_tokens: int) -> object:
    """Equal for two contents exactly when the first tokens have the same keys and values."""
    image = None
    if content.image is not None and content.image_position < num_tokens:
        image = (content.image, content.image_position)
    extra_ids = None if content.extra_ids is None else content.extra_ids[:num_tokens]
    return content.tokens[:num_tokens], content.lora_task_id, content.cache_salt, extra_ids, image


@pytest.mark.parametrize(
    ("enable_partial_reuse", "key_form"), [(False, KeyForm.TOKENS), (True, KeyForm.TOKENS), (False, KeyForm.DIGESTS)]
)
@pytest.mark.parametrize("seed", range(6))
def test_what_differs_in_anything_but_tokens_is_never_shared(
    seed: int, enable_partial_reuse: bool, key_form: KeyForm
) -> None:
    """Isolation: a cached token is used only after the same prefix, adapter, salt, extra ids and image."""
    rng = random.Random(seed)
    manager = make_kv_cache_manager(48, enable_partial_reuse=enable_partial_reuse, key_form=key_form)
    served: set[object] = set()
    num_hits = 0
    for index in range(250):
        content = draw_content(rng)
        request = content.make_request(index)
        admit(manager, request)
        num_cached = request.prepopulated_prompt_len
        num_hits += num_cached > 0
        if num_cached:
            assert describe_prefix(content, num_cached) in served, content
        compute(manager, request)
        manager.remove_sequence(index, request)
        served |= {describe_prefix(content, length) for length in range(1, len(content.tokens))}
    assert num_hits > 10


@pytest.mark.parametrize(
    "change",
    [
        {"lora_task_id": 1},
        {"cache_salt": "b"},
        {"cache_salt": None},
        {"cache_salt": ""},
        {"extra_ids": (0,) * 13},
        {"extra_ids": (1,) * 13},
        {"image": 1},
        {"image": None},
    ],
)
def test_each_constraint_alone_keeps_two_prompts_apart(change: dict[str, object]) -> None:
    content = Content((1,) * 13, lora_task_id=0, cache_salt="a", image=0, image_position=0, image_length=13)
    manager = make_kv_cache_manager(16)
    request = content.make_request(1)
    admit(manager, request)
    compute(manager, request)
    manager.remove_sequence(1, request)
    assert manager.probe_prefix_match_length(content.make_request(2)) == 12
    other = replace(content, **change)  # type: ignore[arg-type]
    assert manager.probe_prefix_match_length(other.make_request(3)) == 0
    assert manager.analyze_prefix_reuse(other.make_request(3)).reusable_blocks_all == 0


@pytest.mark.parametrize("seed", range(300, 330))
def test_probe_says_what_admission_finds(seed: int) -> None:
    """In every state of a random program, for prompts with salts, adapters, extra ids and images."""
    program = RandomProgram(seed, None)
    manager = program.manager
    num_compared = 0
    for _ in range(15):
        for _ in range(8):
            program.step()
        request = program.draw_request()
        probed = manager.probe_prefix_match_length(request)
        try:
            admit(manager, request)
        except OutOfBlocksError:
            continue
        num_compared += 1
        assert probed == request.prepopulated_prompt_len
        assert 0 <= probed < request.prompt_len
        manager.remove_sequence(request.request_id)
    assert num_compared > 3


@pytest.mark.parametrize("seed", range(400, 410))
def test_events_hashes_and_lookups_have_the_keys_of_the_builder(seed: int) -> None:
    rng = random.Random(seed)
    manager = make_kv_cache_manager(32, event_manager=make_event_manager())
    for index in range(12):
        content = draw_content(rng)
        request = content.make_request(index)
        admit(manager, request)
        compute(manager, request)
        committed = manager.commit_and_get_block_hashes_for_request(request, WINDOW)
        manager.remove_sequence(index, request)
        keys = build_block_keys(request, 4, request.prompt_len - 1, True)
        hashes = [0]
        for key in keys:
            hashes.append(hash_block_key(key, hashes[-1]))
        num_full = (request.prompt_len - 1) // 4
        assert committed[:num_full] == hashes[1 : num_full + 1]
        manager.flush_iteration_events()
        stored = {
            block.block_hash: block.block_key
            for event in manager.get_latest_events(0)
            if isinstance(event.data, KVCacheStoredData)
            for block in event.data.blocks
        }
        assert stored.items() <= dict(zip(hashes[1:], keys, strict=True)).items()
        assert hashes[-1] in read_trees(manager)[WINDOW] or not keys
        found = manager.find_blocks_in_reuse_tree_by_block_keys(list(keys), WINDOW)
        assert found is not None
        assert not keys or found.block_key == keys[-1]


def test_keys_follow_tokens_that_are_cut_or_exchanged() -> None:
    """Keys are built once a request; they must not outlive the tokens they were built from."""
    request = make_request(1, range(8))
    before = build_block_keys(request, 4, 8, True)
    request.add_new_tokens([[8, 9, 10, 11]])
    assert build_block_keys(request, 4, 12, True) == [*before, BlockKey((8, 9, 10, 11)).packed]
    request.set_generated_tokens([[1, 2, 3, 4]])
    assert build_block_keys(request, 4, 12, True) == [*before, BlockKey((1, 2, 3, 4)).packed]
    assert build_block_keys(request, 8, 12, False) == [BlockKey(tuple(range(8))).packed]
    request.pause(6)
    assert build_block_keys(request, 4, 6, True) == [before[0], BlockKey((4, 5)).packed]


def test_extra_ids_of_dropped_tokens_are_in_no_key() -> None:
    request = make_request(1, range(8), input_token_extra_ids=range(1, 9))
    request.pause(4)
    request.add_new_tokens([[4, 5, 6, 7]])
    expected = [BlockKey((0, 1, 2, 3), (1, 2, 3, 4)).packed, BlockKey((4, 5, 6, 7), (0, 0, 0, 0)).packed]
    assert build_block_keys(request, 4, 8, True) == expected


@pytest.mark.parametrize(
    ("position", "length"), [(-1, 4), (0, 0), (3, -1), (5, 2**31 - 5)], ids=["negative", "empty", "backwards", "long"]
)
def test_image_without_a_place_is_refused_and_in_no_key(position: int, length: int) -> None:
    """The other image has a place, but loses its keys as well."""
    images = MultimodalInput([[1] * 8, [2] * 8], [0, position], [2, length])
    request = make_request(1, 9, multimodal_input=images)
    assert build_block_keys(request, 4, 8, True) == build_block_keys(make_request(2, 9), 4, 8, True)
    with pytest.raises(InvalidInputError, match=f"item 1 has position {position} and length {length}"):
        admit(make_kv_cache_manager(16), request)
    at_its_end = make_request(3, 9, multimodal_input=images._replace(positions=[0, 4], lengths=[2, 2**31 - 5]))
    admit(make_kv_cache_manager(16), at_its_end)
    assert build_block_keys(at_its_end, 4, 8, True)[1] != build_block_keys(request, 4, 8, True)[1]


def test_run_that_is_too_long_makes_positions_and_lengths_count() -> None:
    images = MultimodalInput([[1] * 8], [4], [4], None, [0, 1], [0], [4])
    runs, places = (
        build_block_keys(make_request(1, 9, multimodal_input=entry), 4, 8, True)
        for entry in (images, images._replace(run_positions=[1], run_lengths=[2**31 - 1]))
    )
    plain = build_block_keys(make_request(1, 9), 4, 8, True)
    assert [key != other for key, other in zip(runs, plain, strict=True)] == [True, False]
    assert [key != other for key, other in zip(places, plain, strict=True)] == [False, True]


def test_a_manager_never_changes_the_keys_of_a_request_it_refuses() -> None:
    manager = make_kv_cache_manager(2)
    request = make_request(1, 20, cache_salt="a")
    with pytest.raises(TrtkvError):
        admit(manager, request)
    roomy = make_kv_cache_manager(16)
    serve(roomy, 2, 20, cache_salt="a")
    assert roomy.probe_prefix_match_length(request) == 19
