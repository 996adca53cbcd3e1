"""Learners (extra `rl`)."""
