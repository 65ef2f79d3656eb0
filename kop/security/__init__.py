"""The identity and the rights of clients: users with their SCRAM credentials, ACLs, the authorizer that reads them.

Owns: the state topic in which users and ACLs are kept, and the settings of the authorizer.
Must not know: requests, handlers, sockets.
"""
