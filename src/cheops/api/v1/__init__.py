"""The REST API under /api/v1. Its OpenAPI document is at /api/v1/openapi.json; docs/api.md says the same."""
