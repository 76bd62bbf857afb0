"""One line of comma-separated values."""


def split_line(line: str) -> list[str]:
    """The fields of a line; a field in double quotes may hold commas."""
    fields = []
    field = ""
    is_quoted = False
    for char in line:
        if char == '"':
            is_quoted = not is_quoted
        elif char == "," and not is_quoted:
            fields.append(field)
            field = ""
        else:
            field += char
    fields.append(field)
    return fields


def join_fields(fields: list[str]) -> str:
    """The line that `split_line` takes apart into these fields."""
    return ",".join(_quoted(field) for field in fields)


def _quoted(field: str) -> str:
    if "," in field or '"' in field:
        return '"' + field.replace('"', '""') + '"'
    return field
