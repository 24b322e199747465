"""Replicas that follow and lead: in-sync sets, and copying from leaders."""
