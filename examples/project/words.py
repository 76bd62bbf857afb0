"""Facts about the words of a text."""


def count_words(text: str) -> int:
    return len(text.split())


def longest_word(text: str) -> str:
    # TODO: strip punctuation before comparing
    return max(text.split(), key=len, default="")
