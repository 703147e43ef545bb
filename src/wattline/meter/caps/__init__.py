"""Power caps that are restored however the process ends."""
