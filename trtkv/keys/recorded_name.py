"""RecordedName: marks the names that recorded hashes leave out. Not among the compiled modules: str cannot be there."""


class RecordedName(str):
    """The name of a multimodal item in compatibility mode: part of its key, and left out of its hash as recorded."""

    __slots__ = ()
