"""Declarations of messages, a module per family of APIs."""
