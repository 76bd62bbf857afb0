"""Adversarial replies: one piece of a dialect repeated, alone, behind an opener or in a block."""

from __future__ import annotations

from collections.abc import Iterator

NUM_CHARS = 200_000
BAR, BLOCK = "\uff5c", "\u2581"
_BEGIN = f"<{BAR}tool{BLOCK}call{BLOCK}begin{BAR}>"
_SEPARATOR = f"<{BAR}tool{BLOCK}sep{BAR}>"

UNITS = (
    *("```\n", "```bash\n", "```bash\nls\n```\n", "```sh\na\n```\n", "```sh\na```\n", "`", "``` "),
    *("```` `", "~~~\n", "~~~bash\n", "a```\n", "```md\n", "```md\n```bash\n```\n"),
    *("```bash\n<<A\n", "<<A", "<<A\n", "<<A <<B ", "x ```bash\n", "- ", "1. ", "- ```bash\n"),
    *("> ```bash\n", "\n", " ", "\x00", "'", '"\\', "<think>"),
    *("<think>\n", "</think>", "</think>\n", "<think></think>", "<think>\n</think>\n"),
    *("'</think>' ", "a <think> b ", "[THINK]", "[/THINK]", "<thinking>", "<tool_call>"),
    *("<tool_call>{", "<tool_call>[", "<tool_call>{}", "<tool_call>{}</tool_call>"),
    *('<tool_call>{"name":', "<TOOLCALL>[", "<|START_ACTION|>[", "functools[{"),
    *("<|tool_call>call:a{", '<|tool_call>call:a{b:<|"|>', '<|tool_call>call:a{b:<|"|>c<|"|>}'),
    *("<|tool_call>call:a{b:[c,", "<|tool_call>call:a{b:1}c", "<tool_call>a<arg_key>"),
    *("<start_function_call>call:a{b:<escape>c<escape>,", "<tool_call>a</tool_call>"),
    *('<tool_call>{"a":"', '<tool_call>{\\"', "</tool_call>"),
    '<tool_call>{"name":"a","arguments":{}}</tool_call>',
    '<tool_call>{"name":"bash","arguments":{"command":"a"}}</tool_call>\n',
    *("<tool_call>a<arg_key>b</arg_key><arg_value>", "</arg_value>"),
    *("<arg_key>a</arg_key><arg_value>", '{"name":', '{"name":\n'),
    *('{"name":"a","arguments":{}}\n', '{"name":"a"}\n', '[{"name":', '[{"name":\n', "[", "{"),
    *("[\n", "{\n", '"', "[]", '{"a":[', "<function=a>", "<function=a><parameter=b>"),
    *("<function=a><parameter=b></parameter>x", "<function=a></function>", "<parameter=a>"),
    *("</parameter>", "<function=a><parameter=b>c</parameter></function>\n"),
    *("<tool_call><function=a>", '<invoke name="a">', '<invoke name="a"><parameter name="b">'),
    *('<invoke name="a"></invoke>', "<invoke name=", "<function_calls>", "<|python_tag|>"),
    *("<|python_tag|>{", '<|python_tag|>{"', "[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]{"),
    *("[TOOL_CALLS]a", "[TOOL_CALLS]a[ARGS]{}", "[TOOL_CALLS]a{", "[ARGS]{", "a[ARGS]{}"),
    *("[TOOL_CALLS]a[CALL_ID]", "<|tool_call_begin|>"),
    "<|tool_call_begin|>a:0<|tool_call_argument_begin|>",
    "<|tool_call_begin|>a<|tool_call_argument_begin|>{",
    *("<|tool_call_begin|>a<|tool_call_argument_begin|>{}<|tool_call_end|>", "functions.a:0{}"),
    *("functions.a:0{", "functions.", "f", _BEGIN, f"{_BEGIN}a{_SEPARATOR}"),
    *(f"{_BEGIN}a{_SEPARATOR}{{", f"{_BEGIN}a{_SEPARATOR}{{}}", "<|channel|>", "<|start|>"),
    *("<|message|>", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    *("<|channel|>a to=b<|message|>{}", "<|channel|>a to=b<|message|>"),
    *("<|channel|>a<|constrain|>", "<|end|>", "<|call|>", "<bash>", "<bash>\n", "\n<sh>"),
    *("<bash>a</bash>", "</bash>", "<sh></sh>", "</s>", "<|im_end|>", "analysis"),
    *("assistantfinal", "analysisassistantfinal", "commentary to=functions.a{}", "<", "<<", "<<<"),
    *("<|", "`<", "<a", "</", "```{", "```bash {"),
    *("(a) ", "A\n", "EOF\n", "[a()]", "[a()]\n", "[a(),"),
    *("cat <<EOF\n", '"a```\n', "```x\n", "]", "}", "```bash\n<think>\n"),
    *("[a(b=1)]", "[a(b=1,\n", "a(b=1),", "b=1,", "[a(b='\n", "[a(b='c'\n", "[a(b=\"'"),
    *("[a(b=[\n", "[a(b=[1],\n", '[a(b="""\n', "<|python_start|>[a()", "<|python_start|>[a(b='"),
    *("<|python_start|>[a()]", "'\n```\n", "```bash\n'\n```\n", "```bash\n'\n```\n```\n"),
    "```bash\n\"\n```\n'\n```\n",
    *("Action: a\nAction Input: b\n", "Action: a\nAction Input: {\n", "Action: ```json\n{\n"),
    *('<|open|>call tool="a"<|sep|>', ']<]minimax[>[<invoke name="a">]<]minimax[>[<b>'),
    *("<function_calls>\na(b=1)", '<|tools_prefix|>[{"a":', "<tool_call>a<tool_sep>"),
)
_OPENERS = (
    "```bash\n",
    "<think>",
    "<tool_call>",
    '<tool_call>{"name":"',
    "<bash>\n",
    "[TOOL_CALLS]",
    "[",
    "[a(b=[",
    "[a(b='",
    "[a(b=1,",
    '```bash\necho "',
    "```md\n",
)
_CLOSERS = ("\n```", "\nA\n```\n```x\n", "</think>")


def adversarial_replies(
    units: tuple[str, ...] = UNITS, num_chars: int = NUM_CHARS
) -> Iterator[tuple[str, str]]:
    """Yield a name and a text of `num_chars` characters for each unit and its surroundings."""
    for unit in units:
        text = (unit * (num_chars // len(unit) + 1))[:num_chars]
        yield f"{unit!r}", text
        for opener in _OPENERS:
            yield f"{unit!r} behind {opener!r}", (opener + text)[:num_chars]
        for closer in _CLOSERS:
            opened = "```bash\n" + text[: num_chars - 30]
            yield f"{unit!r} in a block before {closer!r}", opened + closer
    heredocs = [f"A{index}\n" for index in range(num_chars // 17)]
    opened = "".join(f"<<{name}" for name in heredocs)
    yield "here-documents", f"```bash\n{opened}```\n```\n{''.join(heredocs)}"
