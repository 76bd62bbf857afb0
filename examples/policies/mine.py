"""The smallest policy, to begin your own with: what it leaves out behaves as stock vLLM does."""

from agentkv.policies import TTL, Policy, RestoreCost, Settings


class MineSettings(Settings):
    """The settings of this policy, next to those that all policies have."""

    hold_s: float = 5.0


class Mine(Policy):
    """Pins the KV of each finished turn for `hold_s` seconds, while the job's tool runs."""

    settings_class = MineSettings
    settings: MineSettings

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        """Seconds for which a turn that has just finished is pinned, and why."""
        return TTL(self.settings.hold_s, "the same for every turn")

    # What else a policy can be asked; `help(agentkv.policies.Policy)` says what each must answer:
    #   decide(command, cost, prediction)         how long to pin, once the tool is known
    #   pins_that_yield(pins, request)            which pins are given up when memory is short
    #   rank(turn, *, is_preempted, is_pinned)    the order of waiting turns
    #   victim_rank(turn), sorts_running()        who is preempted
    #   why_hold_back(request), why_wait(turn)    which new jobs, and which returning turns, wait
    #   max_overtakes(num_turns), pressure_s(cost), held_tokens(cost)
    #   turn_finished(turn, served_s), job_ended(job), tick()    what happens
    # It may look at `self.engine` (now_s, num_free_blocks, jobs, turns, pins) and `self.settings`.
