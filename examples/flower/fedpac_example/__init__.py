"""FedPAC as a Flower app."""
