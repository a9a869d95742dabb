"""The commands ``trtkv events ...``: watch a publisher, record it, publish a recording again."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trtkv.commands.output_files import check_outputs, open_output
from trtkv.errors import InvalidInputError

if TYPE_CHECKING:
    from trtkv.exporters.cache_view import CacheView
    from trtkv.exporters.event_message import EventMessage
    from trtkv.exporters.zmq_event_subscriber import ZmqEventSubscriber

events_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Watch the events of a running cache, record and replay them."
)
_POLL_S: Final = 0.1
_CLEAR_SCREEN: Final = "\x1b[H\x1b[J"

Endpoint = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Publisher, such as tcp://127.0.0.1:5557.")]
ReplayEndpoint = Annotated[
    str | None, typer.Option(metavar="ENDPOINT", help="Where the publisher sends missed messages again.")
]
Topic = Annotated[str, typer.Option(metavar="TEXT", help="Topic of the messages.")]
Duration = Annotated[float | None, typer.Option(metavar="S", min=0, help="Stop after S seconds.")]
Messages = Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N messages.")]


@events_app.command()
def watch(
    endpoint: Endpoint,
    replay_endpoint: ReplayEndpoint = None,
    topic: Topic = "kv-events",
    tokens_per_block: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of a full block.")] = 32,
    window: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Windows of the publisher, the widest first.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Prompt to look up at each report: token ids, adapter=NAME, salt=TEXT."),
    ] = None,
    interval: Annotated[float, typer.Option(metavar="S", min=0.05, help="Seconds between reports.")] = 1.0,
    duration: Duration = None,
    messages: Messages = None,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a report, on a line of its own.")] = False,
) -> None:
    """Show what is cached, by rank, adapter and tier, until Ctrl-C.

    Prompts typed in, one a line, are looked up at once: token ids, then adapter=NAME and salt=TEXT if there are any.
    Reads vLLM's batches and TensorRT-LLM's JSON. Name all windows of a publisher that has several.
    """
    from trtkv.exporters.cache_view import CacheView
    from trtkv.exporters.zmq_event_subscriber import ZmqEventSubscriber

    view = CacheView(tokens_per_block, window or ())
    typed = _read_lines()
    prompts = [(text, *parse_prompt(text)) for text in prompt or []]
    shown: object = None
    with ZmqEventSubscriber(endpoint, replay_endpoint, topic=topic) as subscriber:
        due = time.monotonic() + interval
        for received in _receive(subscriber, duration, messages):
            for message in received:
                _take(view, message)
            for line in _drain(typed):
                _answer(view, line, json_lines)
            if time.monotonic() >= due:
                due = time.monotonic() + interval
                shown = _report(view, subscriber, prompts, json_lines, shown)
        for line in _drain(typed):
            _answer(view, line, json_lines)
        _report(view, subscriber, prompts, json_lines, shown)


@events_app.command()
def record(
    endpoint: Endpoint,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write; - is standard output.")],
    replay_endpoint: ReplayEndpoint = None,
    topic: Topic = "kv-events",
    duration: Duration = None,
    messages: Messages = None,
) -> None:
    """Write the messages of a publisher to a file, with their times, until Ctrl-C."""
    from trtkv.exporters.event_recording import RecordedMessage, header_line, recorded_line
    from trtkv.exporters.zmq_event_subscriber import ZmqEventSubscriber

    check_outputs([file])
    count, start = 0, time.monotonic()
    with ZmqEventSubscriber(endpoint, replay_endpoint, topic=topic) as subscriber, open_output(file) as stream:
        stream.write(header_line())
        for received in _receive(subscriber, duration, messages):
            seconds = time.monotonic() - start
            stream.writelines(recorded_line(RecordedMessage(seconds, message)) for message in received)
            count += len(received)
        missed = subscriber.num_missed
    typer.echo(f"recorded {count:,} messages, {missed:,} missed", err=True)


@events_app.command()
def replay(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A recording of trtkv events record.")],
    endpoint: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="Where to publish; with port * a free one is used and shown.")
    ] = "tcp://127.0.0.1:5557",
    replay_endpoint: ReplayEndpoint = None,
    topic: Topic = "kv-events",
    speed: Annotated[
        float, typer.Option(metavar="X", min=0, help="1 as recorded, 2 twice as fast, 0 without waiting.")
    ] = 1.0,
    subscribers: Annotated[int, typer.Option(metavar="N", min=0, help="Wait for N subscribers before the start.")] = 0,
    timeout: Annotated[float, typer.Option(metavar="S", min=0, help="Wait for them for S seconds at most.")] = 60.0,
) -> None:
    """Publish a recording again, at its own speed or another one. Messages are numbered from 0 on."""
    from trtkv.exporters.event_recording import read_recording
    from trtkv.exporters.zmq_event_publisher import ZmqEventPublisher

    recorded = list(read_recording(file))
    missing = sum(max(0, after.message.sequence - before.message.sequence - 1) for before, after in pairwise(recorded))
    with ZmqEventPublisher(endpoint, replay_endpoint, topic=topic) as publisher:
        typer.echo(f"publishing on {publisher.endpoint}, replays on {publisher.replay_endpoint or 'none'}", err=True)
        if missing:
            typer.echo(f"{missing:,} messages are missing in {file}; listeners cannot see that here", err=True)
        if not publisher.wait_for_subscribers(subscribers, timeout):
            raise InvalidInputError(f"fewer than {subscribers} subscribers came within {timeout:g} s; give --timeout")
        start = time.monotonic()
        for seconds, message in recorded:
            if speed:
                time.sleep(max(0.0, start + (seconds - recorded[0].seconds) / speed - time.monotonic()))
            publisher.publish(message.payload)
        publisher.close(linger_ms=5000)
    typer.echo(f"published {len(recorded):,} messages", err=True)


# -- shared -------------------------------------------------------------------------------------------


def parse_prompt(text: str) -> tuple[list[int], str | None, str | None]:
    """Token ids, adapter and salt of a typed prompt, such as ``1 2 3 adapter=poetry salt=x``."""
    tokens, named = [], {"adapter": None, "salt": None}
    for word in text.replace(",", " ").split():
        name, separator, value = word.partition("=")
        if separator and name in named:
            named[name] = value  # type: ignore[assignment]
        elif word.isascii() and word.isdecimal():
            tokens.append(int(word))
        else:
            raise InvalidInputError(f"{word!r} in a prompt; give token ids, adapter=NAME and salt=TEXT")
    return tokens, named["adapter"], named["salt"]


def _receive(
    subscriber: ZmqEventSubscriber, duration: float | None, messages: int | None
) -> Iterator[list[EventMessage]]:
    """Portions of messages, empty ones too, until time or number is over, or Ctrl-C."""
    start, left = time.monotonic(), messages
    try:
        while left is None or left > 0:
            wait = _POLL_S if duration is None else min(_POLL_S, duration - (time.monotonic() - start))
            if wait <= 0:
                return
            received = subscriber.receive(wait)[:left]
            left = None if left is None else left - len(received)
            yield received
    except KeyboardInterrupt:
        return


def _take(view: CacheView, message: EventMessage) -> None:
    try:
        view.take(message.sequence, message.payload)
    except InvalidInputError as error:
        typer.echo(f"message {message.sequence} is left out: {error}", err=True)


def _read_lines() -> SimpleQueue[str]:
    """Lines typed in, as they come; reading stops at the end of the input."""
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            if line.strip():
                lines.put(line.strip())

    threading.Thread(target=read, daemon=True).start()
    return lines


def _drain(lines: SimpleQueue[str]) -> Iterator[str]:
    while True:
        try:
            yield lines.get_nowait()
        except Empty:
            return


def _look_up(view: CacheView, text: str, tokens: list[int], adapter: str | None, salt: str | None) -> dict[str, Any]:
    found = view.find(tokens, adapter, salt)
    by_rank = {"-" if rank is None else str(rank): count for rank, count in found.items()}
    return {"prompt": text, "tokens": len(tokens), "found": by_rank}


def _answer(view: CacheView, line: str, json_lines: bool) -> None:
    try:
        answer = _look_up(view, line, *parse_prompt(line))
    except InvalidInputError as error:
        typer.echo(f"error: {error}", err=True)
        return
    typer.echo(json.dumps(answer) if json_lines else _describe(answer))


def _describe(answer: dict[str, Any]) -> str:
    found = ", ".join(f"rank {rank}: {count:,}" for rank, count in answer["found"].items()) or "nothing"
    return f"of {answer['tokens']:,} tokens found: {found}"


def _report(
    view: CacheView,
    subscriber: ZmqEventSubscriber,
    prompts: list[tuple[str, list[int], str | None, str | None]],
    json_lines: bool,
    shown: object,
) -> object:
    """Write the state if it is another than the one shown before; returns it."""
    rows = view.count()
    state: dict[str, Any] = {
        "messages": view.num_messages,
        "missed": subscriber.num_missed,
        "needs_resync": view.needs_resync,
        "rows": [row._asdict() for row in rows],
        "prompts": [_look_up(view, *prompt) for prompt in prompts],
    }
    if state == shown:
        return shown
    if json_lines:
        typer.echo(json.dumps({"time": round(time.time(), 3)} | state))
        return state
    write: Callable[[str], None] = typer.echo
    if sys.stdout.isatty():
        sys.stdout.write(_CLEAR_SCREEN)
    note = "; events are missing, the view may be wrong" if state["needs_resync"] else ""
    write(f"{state['messages']:,} messages, {state['missed']:,} missed{note}")
    write(f"{'rank':>4}  {'adapter':<20}  {'tier':<4}  {'blocks':>10}  {'tokens':>12}")
    for row in rows:
        rank = "-" if row.rank is None else row.rank
        write(f"{rank:>4}  {row.adapter:<20}  {row.tier:<4}  {row.blocks:>10,}  {row.tokens:>12,}")
    for answer in state["prompts"]:
        write(f"{answer['prompt']}: {_describe(answer)}")
    return state
