"""The object log: jobs on a folder or a bucket, no database at all.

The log is the sequence of calls as they were asked; the state is what the machine makes of them, one after the other. A
call is decided where it stands in the log, so that everyone who reads it comes to the same answer.
"""
