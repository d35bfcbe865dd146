"""``python -m cloze``: the same as ``cloze``, in the form that torchrun starts."""

from cloze.cli import main

if __name__ == "__main__":
    main()
