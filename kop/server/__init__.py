"""Sockets: listeners, connections, dispatch, and the HTTP pages for operators."""
