"""Use cases of the department. What must happen beside a change (mailbox rows, events) comes as callables: those
departments are later in the house.
"""
