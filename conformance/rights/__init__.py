"""Changes of users, ACLs and certificates under load: nothing is answered by what held before, after its bound."""
