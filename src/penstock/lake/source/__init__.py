"""The data source `penstock`: what Spark reads of a store, and writes into it. One small reader per store, behind `open_reader`."""

from penstock.lake.source.asking import Ask, Offset, Reader, Slice, open_reader

__all__ = ["Ask", "Offset", "Reader", "Slice", "open_reader"]
