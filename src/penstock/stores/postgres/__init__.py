"""The PostgreSQL store: the rules as SQL, and the server it can bring along."""
