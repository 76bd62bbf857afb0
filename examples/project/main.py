"""Print how many words a text file has, and its longest one."""

import sys
from pathlib import Path

from words import count_words, longest_word


def main(path: str) -> None:
    # TODO: read from standard input when no path is given
    text = Path(path).read_text(encoding="utf-8")
    print(f"{count_words(text)} words, the longest is {longest_word(text)!r}")


if __name__ == "__main__":
    main(sys.argv[1])
