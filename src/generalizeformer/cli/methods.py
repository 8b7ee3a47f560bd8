"""`methods`: the test-time methods there are."""

from pathlib import Path

from generalizeformer.cli._terminal import console, show_words


def methods(markdown: Path | None = None) -> None:
    """List the test-time methods: what moves, whose statistics, when they answer.

    Args:
        markdown: File to write the whole table to instead, as a page with papers and references (docs/methods.md).
    """
    from generalizeformer import atomic
    from generalizeformer.benchmark.method_pages import methods_page, short_table

    if markdown is None:
        show_words(short_table())
        return
    atomic.write_text(markdown, methods_page())
    console.print(f"page: {markdown}", soft_wrap=True)
