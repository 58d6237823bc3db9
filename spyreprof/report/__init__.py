"""The report: its model, schema, redaction and renderers."""
