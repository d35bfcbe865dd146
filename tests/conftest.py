"""What all tests share."""

import os

# Each is read when a library is imported, and so set before any test module is. No test may reach the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# The oracles draw a bar for every folder that they load.
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
# The models here are too small to share: threads that wait for each other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
