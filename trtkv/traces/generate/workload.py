"""Generated workloads: chat, agent and RAG requests in order of time, as Mooncake rows.

docs/workloads.md describes the model. Text has no words here, only pieces: a piece is a run of tokens
that occurs nowhere else (a system prompt, a message, an answer, a document), and a prompt is a list of
pieces. Two blocks get the same hash id exactly when they hold the same parts of the same pieces behind
the same prefix, so ids form a forest, and what is shared follows from the pieces.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, NamedTuple

from trtkv.checks import check_count, check_integer
from trtkv.errors import InvalidInputError
from trtkv.traces.generate.sampler import Sampler, zipf_weights

MAX_PROMPT_TOKENS: Final = 128_000
"""A chat or RAG session ends, and an agent shortens its history, before a prompt would grow beyond this."""

_MS_PER_OUTPUT_TOKEN: Final = 20.0
_MS_PER_PROMPT_TOKEN: Final = 0.05
_SECOND: Final = 1000.0


class WorkloadRow(NamedTuple):
    """One request as a Mooncake row."""

    timestamp: int
    """Milliseconds since the start."""
    input_length: int
    output_length: int
    hash_ids: list[int]
    session_id: str

    def to_json(self) -> str:
        """The row as one line of JSON, without a line end."""
        return json.dumps(self._asdict())


class Piece(NamedTuple):
    """A run of tokens found nowhere else."""

    number: int
    length: int


class Turn(NamedTuple):
    """One request of a session."""

    time: float
    """Milliseconds since the start."""
    prompt: list[Piece]
    output_length: int

    @property
    def end(self) -> float:
        """When its answer is complete, in ms; a plain rate per token, no queueing."""
        return self.time + _num_tokens(self.prompt) * _MS_PER_PROMPT_TOKEN + self.output_length * _MS_PER_OUTPUT_TOKEN


class World:
    """Random choices and new pieces, for all sessions of a workload."""

    def __init__(self, rng: Random) -> None:
        self.sampler = Sampler(rng)
        self._num_pieces = 0

    def new_piece(self, length: int) -> Piece:
        """A piece unlike all before, of this many tokens."""
        self._num_pieces += 1
        return Piece(self._num_pieces - 1, length)

    def new_pieces(self, count: int, median: float, sigma: float, least: int, most: int) -> list[Piece]:
        """Several pieces of lognormal length."""
        return [self.new_piece(self.sampler.length(median, sigma, least, most)) for _ in range(count)]


class HashIds:
    """Names blocks: the same id for the same content after the same prefix, numbered by first appearance."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ids: dict[tuple[object, ...], int] = {}

    def of_prompt(self, prompt: list[Piece]) -> list[int]:
        """Ids of the prompt's blocks in order; the last block is often filled in part."""
        ids: list[int] = []
        parts: list[int] = []
        room = self._block_size
        for piece in prompt:
            start = 0
            while start < piece.length:
                taken = min(room, piece.length - start)
                parts += (piece.number, start, taken)
                start += taken
                room -= taken
                if not room:
                    self._append_id(ids, parts)
                    parts, room = [], self._block_size
        if parts:
            self._append_id(ids, parts)
        return ids

    def _append_id(self, ids: list[int], parts: list[int]) -> None:
        parent = ids[-1] if ids else -1
        ids.append(self._ids.setdefault((parent, *parts), len(self._ids)))


class ChatModel:
    """People in conversation: system prompts shared by many, histories that grow, pauses to read and write."""

    ms_between_sessions: Final = 2.0 * _SECOND

    def __init__(self, world: World) -> None:
        self._world = world
        self._system_prompts = world.new_pieces(20, median=400, sigma=1.0, least=50, most=8000)
        self._popularity = zipf_weights(len(self._system_prompts), exponent=1.0)

    def session(self, start: float) -> Iterator[Turn]:
        """A conversation of 4 turns on average; one answer in twenty is asked for a second time."""
        world, sampler = self._world, self._world.sampler
        prompt: list[Piece] = []
        if sampler.chance(0.9):
            prompt.append(self._system_prompts[sampler.index(self._popularity)])
        if sampler.chance(0.1):
            prompt.append(world.new_piece(sampler.length(4000, 0.8, 500, 30_000)))
        time = start
        for _ in range(sampler.geometric(4)):
            message = world.new_piece(sampler.length(80, 1.2, 4, 16_000))
            if _num_tokens(prompt) + message.length > MAX_PROMPT_TOKENS:
                return
            prompt.append(message)
            turn = self._turn(time, prompt)
            yield turn
            if sampler.chance(0.05):
                turn = self._turn(turn.end + self._pause(), prompt)
                yield turn
            prompt.append(world.new_piece(turn.output_length))
            time = turn.end + self._pause()

    def _turn(self, time: float, prompt: list[Piece]) -> Turn:
        return Turn(time, list(prompt), self._world.sampler.length(250, 0.8, 1, 4000))

    def _pause(self) -> float:
        return self._world.sampler.lognormal(30 * _SECOND, 1.0, 2 * _SECOND, 3600 * _SECOND)


class AgentModel:
    """Programs that call tools in a loop: long shared instructions, short calls, results of any size, quick steps."""

    ms_between_sessions: Final = 8.0 * _SECOND

    def __init__(self, world: World) -> None:
        self._world = world
        self._agents = world.new_pieces(4, median=6000, sigma=0.5, least=1500, most=25_000)
        self._projects = world.new_pieces(30, median=3000, sigma=0.8, least=200, most=20_000)
        self._agent_popularity = zipf_weights(len(self._agents), exponent=1.0)
        self._project_popularity = zipf_weights(len(self._projects), exponent=1.1)

    def session(self, start: float) -> Iterator[Turn]:
        """One task: 12 steps on average, some of which hand work to a sub-agent and wait for it."""
        project = self._projects[self._world.sampler.index(self._project_popularity)]
        yield from self._task(start, project, mean_steps=12, may_delegate=True)

    def _task(self, start: float, project: Piece, mean_steps: float, may_delegate: bool) -> Iterator[Turn]:
        world, sampler = self._world, self._world.sampler
        agent = self._agents[sampler.index(self._agent_popularity)]
        task = world.new_piece(sampler.length(150, 1.0, 10, 8000))
        prompt = [agent, project, task]
        time = start
        for _ in range(sampler.geometric(mean_steps)):
            turn = Turn(time, list(prompt), sampler.length(120, 0.9, 10, 4000))
            yield turn
            if sampler.chance(0.02):  # the call was lost on the way: the same prompt once more
                turn = Turn(turn.end + self._latency(), list(prompt), turn.output_length)
                yield turn
            time = turn.end + self._latency()
            if may_delegate and sampler.chance(0.05):
                for turn in self._task(time, project, mean_steps=5, may_delegate=False):
                    yield turn
                time = turn.end + self._latency()
            prompt += (world.new_piece(turn.output_length), world.new_piece(sampler.length(600, 1.4, 10, 30_000)))
            if _num_tokens(prompt) > MAX_PROMPT_TOKENS:
                prompt = [agent, project, task, world.new_piece(sampler.length(1500, 0.5, 300, 6000))]

    def _latency(self) -> float:
        return self._world.sampler.lognormal(1.5 * _SECOND, 1.2, 0.05 * _SECOND, 600 * _SECOND)


class RagModel:
    """Questions answered from documents: popular topics, documents in order of rank, few follow-ups."""

    ms_between_sessions: Final = 1.0 * _SECOND

    def __init__(self, world: World) -> None:
        self._world = world
        self._applications = world.new_pieces(3, median=500, sigma=0.7, least=100, most=4000)
        self._topics = [world.new_pieces(8, median=700, sigma=0.6, least=100, most=4000) for _ in range(200)]
        self._popularity = zipf_weights(len(self._topics), exponent=0.9)
        self._application_popularity = zipf_weights(len(self._applications), exponent=1.0)

    def session(self, start: float) -> Iterator[Turn]:
        """A question with 3 to 6 documents; three in ten answers lead to one more question on the same documents."""
        world, sampler = self._world, self._world.sampler
        prompt = [self._applications[sampler.index(self._application_popularity)], *self._documents()]
        time = start
        while True:
            prompt.append(world.new_piece(sampler.length(40, 0.9, 4, 2000)))
            if _num_tokens(prompt) > MAX_PROMPT_TOKENS:
                return
            turn = Turn(time, list(prompt), sampler.length(200, 0.7, 1, 2000))
            yield turn
            if not sampler.chance(0.3):
                return
            prompt.append(world.new_piece(turn.output_length))
            time = turn.end + sampler.lognormal(20 * _SECOND, 1.0, 2 * _SECOND, 1800 * _SECOND)

    def _documents(self) -> list[Piece]:
        """The best documents of a topic in order of rank; now and then one of another topic takes a place."""
        sampler = self._world.sampler
        topic = self._topics[sampler.index(self._popularity)]
        num_documents = min(2 + sampler.geometric(2), 6)
        return [
            self._topics[sampler.index(self._popularity)][rank] if sampler.chance(0.15) else topic[rank]
            for rank in range(num_documents)
        ]


WorkloadModel = ChatModel | AgentModel | RagModel

WORKLOAD_KINDS: Final[dict[str, Callable[[World], WorkloadModel]]] = {
    "chat": ChatModel,
    "agent": AgentModel,
    "rag": RagModel,
}


def generate_workload(kind: str, num_requests: int, rng: Random, block_size: int = 512) -> Iterator[WorkloadRow]:
    """The first ``num_requests`` requests of a workload, in order of time; equally seeded ``rng``, equal rows.

    ``kind`` is chat, agent or rag; ``block_size`` is the number of tokens that a hash id stands for.
    Raises InvalidInputError at once for arguments out of range.
    """
    if kind not in WORKLOAD_KINDS:
        raise InvalidInputError(f"unknown workload kind {kind!r}; known are {', '.join(WORKLOAD_KINDS)}")
    check_integer("number of requests", num_requests, 0)
    check_count("block size", block_size, 1)
    return _rows(kind, num_requests, World(rng), HashIds(block_size))


def _rows(kind: str, num_requests: int, world: World, hash_ids: HashIds) -> Iterator[WorkloadRow]:
    turns = _turns(WORKLOAD_KINDS[kind](world), world.sampler)
    for _ in range(num_requests):
        session, turn = next(turns)
        ids = hash_ids.of_prompt(turn.prompt)
        yield WorkloadRow(int(turn.time), _num_tokens(turn.prompt), turn.output_length, ids, f"s{session}")


def _turns(model: WorkloadModel, sampler: Sampler) -> Iterator[tuple[int, Turn]]:
    """Turns of all sessions in order of time, without end, each with the number of its session.

    Sessions start independently of each other.
    """
    queue: list[tuple[float, int, int, Turn, Iterator[Turn]]] = []
    num_queued = num_sessions = 0
    next_start = 0.0
    while True:
        if not queue or next_start <= queue[0][0]:
            number, session = num_sessions, model.session(next_start)
            num_sessions += 1
            next_start += sampler.exponential(model.ms_between_sessions)
        else:
            _, _, number, turn, session = heapq.heappop(queue)
            yield number, turn
        following = next(session, None)
        if following is not None:
            heapq.heappush(queue, (following.time, num_queued, number, following, session))
            num_queued += 1


def _num_tokens(prompt: list[Piece]) -> int:
    return sum(piece.length for piece in prompt)
