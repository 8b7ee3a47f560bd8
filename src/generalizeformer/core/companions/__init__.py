"""Networks that a compared method trains beside the source model, one file each: what training and test share.

A file's name is its method's. `build(backbone, classes)` gives the untrained network around a copy of the backbone;
its state is kept in `GeneralizeFormer.companions` and saved with the model.
"""
