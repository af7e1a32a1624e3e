"""Files that hold named arrays: one file per format."""
