"""The files of a report: plots, tables, model card."""
