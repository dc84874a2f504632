"""The rules: frozen values and pure functions. Nothing here does I/O or asks for the time."""
