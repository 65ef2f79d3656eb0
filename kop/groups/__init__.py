"""The group coordinator: who consumes together, and how far they are.

- `runtime`: all groups, what is asked of them, and carrying out what their state machines decide.
- `offsets`: what groups committed, its records, its expiry. `settings`: what can be set.
- `classic`: groups of the classic protocol as pure state machines.

Their records are in the topic `__offsets`, by way of `kop.coordination`.
"""
