"""The command line of keras_vit: prints, parses, owns folders. Nobody imports it."""
