"""What README and tutorial show is what happens: files are saved, commands typed, answers compared."""

import pytest

from tests.docs.pages import ROOT, play


@pytest.mark.spark
@pytest.mark.crash
# The tutorial takes a minute, and guards a page: no row depends on it.
@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/tutorial.md", marks=pytest.mark.nightly)])
def test_a_page_does_what_it_shows(page, tmp_path):
    play(ROOT / page, tmp_path)


def test_a_transcript_that_is_not_true_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one; echo two\none\n...\ntwo\n$ echo three\nfour\n```\n")
    with pytest.raises(AssertionError, match="four"):
        play(page, tmp_path)
