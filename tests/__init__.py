"""The tests; a package, so that `python -m tests.mutations` finds this one and no installed one."""
