"""Contacts: which geoms can touch, where they do, with what parameters."""
