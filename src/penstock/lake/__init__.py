"""The lake: everything that ever happened to jobs, as open tables that people can ask. Needs no Spark to be imported."""

from penstock.lake.draining import drain

__all__ = ["drain"]
