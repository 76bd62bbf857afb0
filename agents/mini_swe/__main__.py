"""mini-swe-agent's SWE-bench batch, each instance a job; options as for `mini-extra swebench`."""

from minisweagent.run.benchmarks import swebench

from .batch import substitute

if __name__ == "__main__":
    substitute()
    swebench.app(prog_name="python -m agentkv.agents.mini_swe")
