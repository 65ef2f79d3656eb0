"""Changes of users, ACLs, quotas, grants and certificates under load: nothing is answered by what held before, after
its bound."""
