"""`keras-vit pretrain`: what images without labels do for weights, measured on those with some."""
