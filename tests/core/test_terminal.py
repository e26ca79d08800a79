"""Text that cannot steer a terminal, and tables that keep their figures on a narrow one."""

from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from phrasechain.core.terminal import print_table, printable


@given(st.text(st.characters()))
def test_printable_text_is_one_line_that_any_terminal_can_show(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode("utf-8")
    assert printable(shown) == shown


def test_what_can_be_seen_stays_as_it_is() -> None:
    assert printable("Zoë's [photo] – 写真.jpg") == "Zoë's [photo] – 写真.jpg"
    assert printable("a\x1b[2J\r\n\udcff") == "a\\x1b[2J\\r\\n\\udcff"


def test_a_table_wider_than_the_terminal_keeps_every_figure() -> None:
    table = Table(*[f"column {number}" for number in range(12)])
    table.add_row(*[f"{number:,}" for number in range(1_000_000, 1_000_012)])
    file = StringIO()
    print_table(table, Console(file=file, width=40))
    for number in range(1_000_000, 1_000_012):
        assert f"{number:,}" in file.getvalue()
    assert "…" not in file.getvalue()
