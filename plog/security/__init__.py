"""Authentication and authorisation; they come with their step."""
