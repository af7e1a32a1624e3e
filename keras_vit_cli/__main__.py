"""`python -m keras_vit_cli`, as `keras-vit`."""

import sys

from keras_vit_cli.start import main

sys.exit(main())
