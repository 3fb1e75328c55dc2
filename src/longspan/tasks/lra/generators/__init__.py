"""Generators of ListOps and Pathfinder, compiled."""
