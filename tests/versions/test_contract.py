"""What the plugin expects of the installed vLLM; run under every supported version.

`make test-versions` runs this folder and tests/integrations/vllm under each of them.
"""

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest
from vllm.v1.core.sched.interface import SchedulerInterface

from agentkv.integrations.vllm.engine import scheduler, seam
from tests.integrations.vllm.harness import STOCK, Engine


def names_used_on_self(module: ModuleType, class_name: str) -> set[str]:
    """Attributes a class reads from `self` without defining them itself."""
    classes = {
        node.name: node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }
    used, defined = set(), set()
    for node in ast.walk(classes[class_name]):
        if isinstance(node, ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.attr)
    return used - defined


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_stock_schedulers_have_every_attribute_that_ours_read(
    is_async: bool, tmp_path: Path
) -> None:
    """What our scheduler reads from `self` beyond its own is an attribute of a stock scheduler."""
    stock = Engine(scheduler_class=STOCK[is_async]).scheduler
    of_seam = names_used_on_self(seam, "SchedulerSeam")
    of_ours = names_used_on_self(scheduler, "RetainingScheduler")
    expected = of_seam | {name for name in of_ours if not hasattr(seam.SchedulerSeam, name)}
    assert {"deferred_frees", "processed_step_seq", "kv_cache_manager"} <= expected
    assert {name for name in expected if not hasattr(stock, name)} == set()


def test_every_private_method_that_ours_extend_is_in_the_contract() -> None:
    """What `super()` is asked for is public in vLLM's SchedulerInterface or listed by the seam."""
    extended = {
        node.attr
        for module in (seam, scheduler)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "super()"
    }
    listed = {attribute for _, attribute in seam.CONTRACT}
    assert {"_free_blocks", "schedule"} <= extended
    assert extended - {"__init__"} - set(dir(SchedulerInterface)) <= listed


def test_stat_loggers_are_given_to_the_async_engine() -> None:
    """AsyncLLM takes `stat_loggers`, by which our metrics get in without a plugin group."""
    from vllm.v1.engine.async_llm import AsyncLLM

    assert "stat_loggers" in inspect.signature(AsyncLLM.__init__).parameters
