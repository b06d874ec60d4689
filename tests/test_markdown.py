"""The documentation tests see what is there: blocks, spans, links, headings, commands."""

from __future__ import annotations

import pytest

from tests.markdown import anchors, blocks, commands, links, spans

TEXT = """# A title, with `code`

See [one](docs/a.md#part), ![two](b.png "a picture") and `[no](link.md)`; `--option` and
``a `b` c``.

<!-- run exit=1 compare -->

```console
$ hbdebug info \\
    model.onnx
112 nodes
$ true
```

Text between.

  ~~~
  [no](block.md)
  hbdebug report r.json
  ~~~

## A title, with `code`

[ref]: c.md
"""


def test_blocks_know_their_language_their_place_and_how_to_run_them():
    first, second = blocks(TEXT)

    assert (first.line, first.language, first.settings) == (8, "console", ("exit=1", "compare"))
    assert (second.language, second.settings) == ("", None)
    assert second.text == "[no](block.md)\nhbdebug report r.json"


def test_commands_are_told_from_their_output():
    first, second = blocks(TEXT)

    assert commands(first) == [("hbdebug info model.onnx", ["112 nodes"]), ("true", [])]
    assert commands(second) == [("hbdebug report r.json", [])]


def test_links_in_code_do_not_count():
    assert links(TEXT) == ["docs/a.md#part", "b.png", "c.md"]


def test_code_spans_are_found_outside_of_blocks():
    assert spans(TEXT) == ["code", "[no](link.md)", "--option", "a `b` c", "code"]


def test_repeated_headings_get_numbered_anchors():
    assert anchors(TEXT) == {"a-title-with-code", "a-title-with-code-1"}


def test_a_block_that_is_never_closed_is_an_error():
    with pytest.raises(AssertionError, match="line 2"):
        blocks("text\n```sh\nls")
