"""``python -m cloze``: the same as ``cloze``, in the form that torchrun starts."""

import os
import sys

from cloze.cli import main

if __name__ == "__main__":
    try:
        main()
    except SystemExit as ended:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            raise
        # Among several processes, PyTorch has threads that Python may take apart before they have ended: now and then
        # one aborts a training that is over, and torchrun counts it as failed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 1)
