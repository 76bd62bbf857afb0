"""Six small instances in the SWE-bench format, and the three repositories that they are about.

`instances.json` is a dataset like any other. `repositories` holds the sources as plain files, bugs
included; the commits that the instances name come about when they are made git repositories.
"""

from .preparation import SUITE_FILE, prepare

__all__ = ["SUITE_FILE", "prepare"]
