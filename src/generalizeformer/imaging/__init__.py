"""Images in, images out: decoding, looks, corruptions, augmentation. Knows no labels, so that adapters may use it."""
