"""Six small instances in the SWE-bench format, and the sources of their three repositories.

`instances.json` is a dataset like any other. `repositories` holds plain files, bugs included;
`environments.prepare_suite` makes the commits that the instances name.
"""
