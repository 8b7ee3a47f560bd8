"""The catalogue of datasets: every plain file has `Config` and `build(config)`."""

DATASETS = __name__  # under which the catalogue finds them
VARIABLE = "GENERALIZEFORMER_DATA"  # of the environment: the folder that holds a folder per dataset
