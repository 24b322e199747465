"""Parts of the wiring of a broker (`plog.broker`), each with a subject of its own."""
