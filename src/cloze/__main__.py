"""``python -m cloze``: the same as ``cloze``, in the form that torchrun requires."""

import os
import sys

from cloze.cli import main

if __name__ == "__main__":
    try:
        main()
    except SystemExit as ended:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            raise
        # In distributed training, PyTorch has threads that may still run while the interpreter shuts down. Occasionally
        # one of them aborts a finished process, and torchrun reports it as failed. So exit without shutting down.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)
