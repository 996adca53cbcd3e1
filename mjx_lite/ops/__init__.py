"""Vocabulary of array operations: linear maps, indexing, loops, compaction of lanes."""
