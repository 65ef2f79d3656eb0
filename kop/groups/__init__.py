"""The group coordinator: who consumes together, and how far they are.

- `coordinator`: all groups, their timer, what is asked of them. `log`: their records in the `__offsets` topic.
- `classic`: one group as a pure machine; `roster`: its members; `states`: its states. `offsets`: what it committed.
- `messages`: questions and answers. `settings`: what can be set. `subscription`: what consumers subscribe to.
"""
