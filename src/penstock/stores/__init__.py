"""Where jobs live. Each store implements core.ports.Store."""
