"""A cap on concurrency, as trainers have it: `most` trajectories at once, all else is stock's."""

from __future__ import annotations

from pydantic import Field

from agentkv.policies import AdmissionRequest, Policy, Settings


class CapSettings(Settings):
    most: int = Field(32, ge=1)


class Cap(Policy):
    """New jobs wait while `most` have begun and not ended."""

    settings_class = CapSettings
    settings: CapSettings

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        num_jobs = sum(job.has_run for job in self.engine.jobs)
        return f"{num_jobs} jobs at once" if num_jobs >= self.settings.most else None
