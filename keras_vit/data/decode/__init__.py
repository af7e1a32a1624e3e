"""From the bytes of image files to pixels."""
