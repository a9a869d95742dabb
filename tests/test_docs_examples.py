"""The worked examples of docs/ show what their code prints; tools/docs_examples.py does the work."""

from __future__ import annotations

import pytest

from tools import docs_examples
from tools.docs_examples import PAGES, find_stray_blocks, read_examples, rewrite


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_shows_what_its_code_prints(page):
    text = page.read_text(encoding="utf-8")
    assert text == rewrite(text, page.name), "run: python -m tools.docs_examples --write"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_examples_with_output_and_nothing_unchecked(page):
    text = page.read_text(encoding="utf-8")
    assert sum(example.output is not None for example in read_examples(text)) >= 4
    assert find_stray_blocks(text) == []


PAGE = """# Title

```python
x = 1
```

```python
print(x + 1)
```

```text
{shown}
```

End.
"""


def test_right_output_is_left_alone():
    page = PAGE.format(shown="2")
    assert rewrite(page, "page") == page
    assert [example.output for example in read_examples(page)] == [None, "2\n"]


def test_wrong_and_missing_output_is_replaced():
    assert rewrite(PAGE.format(shown="3"), "page") == PAGE.format(shown="2")
    without = PAGE.format(shown="2").replace("```text\n2\n```\n\n", "")
    assert rewrite(without, "page") == PAGE.format(shown="2")


def test_output_of_code_that_prints_nothing_is_dropped():
    page = "```python\nx = 1\n```\n\n```text\n1\n```\n"
    assert rewrite(page, "page") == "```python\nx = 1\n```\n"


def test_a_text_block_without_code_is_stray():
    assert find_stray_blocks(PAGE.format(shown="2") + "\n```text\nunchecked\n```\n\n```console\n$ ls\n```\n") == [
        "text",
        "console",
    ]


def test_the_tool_reports_a_page_and_writes_it(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(shown="3"), encoding="utf-8")
    monkeypatch.setattr(docs_examples, "PAGES", (page,))
    monkeypatch.setattr("sys.argv", ["docs_examples"])
    assert docs_examples.main() == 1
    assert "page.md: shows other output" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["docs_examples", "--write"])
    assert docs_examples.main() == 0
    monkeypatch.setattr("sys.argv", ["docs_examples"])
    assert docs_examples.main() == 0
    assert page.read_text(encoding="utf-8") == PAGE.format(shown="2")
