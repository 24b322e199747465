"""What every layer runs on: clocks and waits."""
