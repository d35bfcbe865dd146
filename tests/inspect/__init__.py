# ruff: noqa: A005 (named after the package that it tests; it is imported as tests.inspect)
