"""What holds the rules of the house: tables of tests name files that exist.

The floor plan and the prose themselves are checked by `make check`.
"""

import re
import tomllib

from tests.conftest import GROUP_OF, SLOW
from tests.house import floor_plan


def test_an_installation_leaves_the_vllm_that_is_there_alone() -> None:
    """What every installation of the package asks for is neither vLLM nor anything of torch."""
    project = tomllib.loads((floor_plan.ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", each, maxsplit=1)[0] for each in project["dependencies"]}
    assert names == {"pydantic", "httpx", "tenacity"}


def test_files_that_are_grouped_or_slow_exist() -> None:
    """The tables of tests/conftest.py name files, none that was moved or removed."""
    paths = [name.partition("::")[0] for name in (*GROUP_OF, *SLOW)]
    assert [path for path in paths if not (floor_plan.ROOT / path).exists()] == []
