"""A mail server to try out: `postroom demo` runs one with a person, an agent and some mail, and can check itself."""
