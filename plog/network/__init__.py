"""Listeners, and the way of requests from the reactor to the handlers and back."""
