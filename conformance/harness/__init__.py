"""Runs under faults, whoever judges them: servers, links to them, faults, processes of clients, a run's frame."""
