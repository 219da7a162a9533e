"""The REST API `/v1` (rest-api): each module registers the routes of one resource, with their schemas."""
