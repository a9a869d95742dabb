"""Files of any packing and size: what is unpacked, and that no line or element is read without a limit."""

from __future__ import annotations

import builtins
import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from trtkv.errors import InvalidInputError, MissingExtraError, TraceFormatError
from trtkv.traces.trace_reader import detect_format, read_trace

ROW = {"block_size": 4, "input_length": 10, "hash_ids": [7, 8, 9], "output_length": 2}
LINE = json.dumps(ROW).encode() + b"\n"


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Importing these fails."""
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name.split(".")[0] in packages:
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)


class TestZstd:
    def test_frames_follow_each_other(self, tmp_path: Path) -> None:
        zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
        pack = zstandard.ZstdCompressor().compress
        path = tmp_path / "t.jsonl.zst"
        path.write_bytes(pack(LINE * 2) + pack(LINE * 3))
        assert len(read_trace(path).requests) == 5
        assert len(read_trace(tmp_path).requests) == 5

    def test_broken_content_stops_with_its_line(self, tmp_path: Path) -> None:
        zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
        path = tmp_path / "t.jsonl"
        path.write_bytes(zstandard.ZstdCompressor().compress(LINE)[:8] + b"broken" * 9)
        with pytest.raises(TraceFormatError, match=r"t\.jsonl:1: cannot read on"):
            read_trace(path)

    def test_without_the_package_the_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "t.jsonl"
        path.write_bytes(b"\x28\xb5\x2f\xfd....")
        without(monkeypatch, "zstandard")
        monkeypatch.setattr("trtkv.traces.trace_stream.import_module", __import__("importlib").import_module)
        with pytest.raises(MissingExtraError, match=r't\.jsonl is compressed with zstd: pip install "trtkv\[zstd\]"'):
            read_trace(path)


class TestParquet:
    def test_rows_are_those_of_json_lines(self, tmp_path: Path) -> None:
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        rows = [{**ROW, "timestamp": None}, {**ROW, "hash_ids": [7, 8, 1], "timestamp": 3}, {**ROW, "input_length": 0}]
        parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "t.parquet")
        with pytest.raises(TraceFormatError, match=r"t\.parquet:3: input_length is 0, less than 1"):
            read_trace(tmp_path / "t.parquet")
        trace = read_trace(tmp_path, lenient=True)
        assert [request.tokens().tolist()[::4] for request in trace.requests] == [[0, 4, 8], [0, 4, 12]]
        assert len(read_trace(tmp_path / "t.parquet", limit=1).requests) == 1

    def test_broken_content(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        (tmp_path / "t.parquet").write_bytes(b"PAR1....")
        with pytest.raises(TraceFormatError, match=r"t\.parquet:1: cannot read on"):
            read_trace(tmp_path / "t.parquet")

    def test_without_the_package_the_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "t.parquet").write_bytes(b"PAR1....")
        without(monkeypatch, "pyarrow")
        with pytest.raises(MissingExtraError, match=r't\.parquet is a Parquet file: pip install "trtkv\[parquet\]"'):
            read_trace(tmp_path / "t.parquet")


class TestLimits:
    @pytest.mark.parametrize("before", [b"", LINE, LINE * 2])
    def test_a_line_longer_than_the_limit_is_refused(self, tmp_path: Path, before: bytes) -> None:
        path = tmp_path / "t.jsonl"
        number = before.count(b"\n") + 1
        path.write_bytes(before + LINE[:-2] + b" " * 200_000 + b"}\n" + LINE)
        length = 200_000 + len(LINE) - 1
        with pytest.raises(
            TraceFormatError, match=rf"t\.jsonl:{number}: the line is longer than 1000 bytes; .*--max-line-bytes"
        ):
            read_trace(path, max_line_bytes=1000)
        assert len(read_trace(path, max_line_bytes=length + 1).requests) == number + 1
        with pytest.raises(InvalidInputError, match="max_line_bytes is 0; give at least 1"):
            read_trace(path, max_line_bytes=0)

    def test_memory_does_not_grow_with_a_packed_line(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        with gzip.open(path, "wb", compresslevel=1) as stream:
            stream.write(b'{"a": "')
            for _ in range(200):
                stream.write(b"x" * 1_000_000)
        tracemalloc.start()
        with pytest.raises(TraceFormatError, match="the line is longer than 2000000 bytes"):
            read_trace(path, max_line_bytes=2_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
        tracemalloc.stop()

    def test_an_array_is_read_piece_by_piece(self, tmp_path: Path) -> None:
        path = tmp_path / "t.json"
        element = json.dumps({**ROW, "padding": "x" * 100_000})
        path.write_text("[" + ",\n".join([element] * 300) + "]")
        tracemalloc.start()
        trace = read_trace(path, max_line_bytes=200_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(trace.requests) == 300
        assert peak < 12_000_000
        with pytest.raises(TraceFormatError, match=r"t\.json:1: an element has more than 50000 letters"):
            read_trace(path, max_line_bytes=50_000)

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
    def test_pieces_may_end_anywhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        monkeypatch.setattr("trtkv.traces.trace_stream._CHUNK_BYTES", size)
        monkeypatch.setattr("trtkv.traces.row_sources._FIRST_BYTES", 1)
        rows = [{**ROW, "note": 'é"\\ud83d,]}'}, {**ROW, "hash_ids": [7, 8, 1]}, ROW]
        path = tmp_path / "t.json"
        text = json.dumps(rows, indent=1, ensure_ascii=False)
        path.write_text(text)
        assert [r.tokens().tolist()[8] for r in read_trace(path).requests] == [8, 12, 8]
        path.write_text(text.replace("10", "1e", 1))
        with pytest.raises(TraceFormatError, match=r"t\.json:4: bad JSON"):
            read_trace(path)
        path.write_text(text[:-1])
        with pytest.raises(TraceFormatError, match="the array is not closed"):
            read_trace(path)
        path.write_text(text + "\n5")
        with pytest.raises(TraceFormatError, match="something follows the document"):
            read_trace(path)


def test_a_format_is_detected_without_options(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(LINE)
    assert not detect_format(path).needs_block_size
    path.write_text('{"input_length": 3, "hash_ids": [1]}\n')
    assert (detect_format(path).name, detect_format(path).needs_block_size) == ("mooncake", True)
    path.write_bytes(b"")
    with pytest.raises(TraceFormatError, match="holds no request"):
        detect_format(path)


def test_parquet_from_a_pipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    class Stdin:
        buffer = io.BufferedReader(Pipe(b"PAR1...."))  # type: ignore[arg-type]

    monkeypatch.setattr("sys.stdin", Stdin)
    with pytest.raises(TraceFormatError, match="a Parquet file is not read from a pipe; give its name"):
        read_trace("-")
