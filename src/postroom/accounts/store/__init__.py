"""SQL of the department: functions that take a connection and return models."""
