"""The files of a report: the page, its tables and plots."""
