from textgrid.grid import column_widths, render


def test_nothing_to_render():
    assert render([]) == ""


def test_the_widest_cell_counts():
    assert column_widths([["name", "n"], ["a", "100"]]) == [4, 3]


def test_cells_are_padded():
    assert render([["name", "n"], ["a", "1"]]) == "name  n\na     1"
