"""Sockets: listeners, connections, the request pipeline, and the HTTP pages for operators."""
