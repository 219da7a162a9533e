"""Use cases of the department: each opens its transaction, asks the rules and calls the stores."""
