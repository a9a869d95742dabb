"""Endpoints of sockets: checked before ZeroMQ sees them, which takes port 99999 for another one."""

from __future__ import annotations

import re
from typing import Final

from trtkv.checks import check_integer, check_type
from trtkv.errors import InvalidInputError

MAX_PORT: Final = 65535
_TCP: Final = re.compile(r"tcp://(?P<host>[^/\s]+):(?P<port>\d+|\*)", re.ASCII)
_LOCAL: Final = re.compile(r"(ipc|inproc)://\S+")


def check_endpoint(endpoint: str) -> str:
    """The endpoint; raises InvalidInputError unless it is ``tcp://HOST:PORT``, ``ipc://PATH`` or ``inproc://NAME``."""
    check_type("endpoint", endpoint, str)
    tcp = _TCP.fullmatch(endpoint)
    if tcp is None and not _LOCAL.fullmatch(endpoint):
        raise InvalidInputError(
            f"endpoint is {endpoint!r}; give tcp://HOST:PORT, ipc://PATH or inproc://NAME, such as tcp://127.0.0.1:5557"
        )
    if tcp is not None and tcp["port"] != "*":
        check_integer(f"port of {endpoint}", int(tcp["port"]), 0, MAX_PORT)
    return endpoint


def offset_port(endpoint: str, rank: int) -> str:
    """The endpoint of an attention-DP rank: the base port plus the rank; other transports get the rank as a suffix.

    Raises InvalidInputError if there is no such port.
    """
    check_endpoint(endpoint)
    check_integer("rank", rank, 0)
    base, _, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp://") and port != "*":
        return check_endpoint(f"{base}:{int(port) + rank}")
    return endpoint if rank == 0 or port == "*" else f"{endpoint}_{rank}"
