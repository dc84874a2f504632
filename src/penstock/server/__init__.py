"""The service: Penstock over HTTP."""
