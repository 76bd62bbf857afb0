from textgrid.csvline import join_fields, split_line


def test_plain_fields():
    assert split_line("a,b,c") == ["a", "b", "c"]


def test_empty_fields():
    assert split_line("a,,") == ["a", "", ""]


def test_a_quoted_comma():
    assert split_line('"Doe, Jane",42') == ["Doe, Jane", "42"]


def test_joining_quotes_a_comma():
    assert join_fields(["Doe, Jane", "42"]) == '"Doe, Jane",42'
