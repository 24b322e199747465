"""Coordinators of groups and transactions; they come with their step."""
