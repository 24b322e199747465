"""What an operator types into a terminal, and the text that it shows."""
