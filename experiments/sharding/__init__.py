"""Chains over several devices."""
