"""The worker: takes jobs from a queue, runs their handlers, and cannot lie about being alive."""
