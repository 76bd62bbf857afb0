from words import count_words, longest_word


def test_counts_words_between_any_blanks():
    assert count_words("one two\n three") == 3


def test_empty_text_has_no_longest_word():
    assert longest_word("") == ""
