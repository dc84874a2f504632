"""A queue on plain storage: a numbered log of commands, and the state that is their fold."""
