"""The classic protocol of groups (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as a pure state machine.

- `group`: one group. `roster`: its members, and what consumers subscribe to.
- `messages`: the questions that the machine answers, and its effects.
"""
