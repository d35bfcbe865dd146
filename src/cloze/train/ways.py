"""Ways to tune that exclude each other, and what each may be told. Light to import: settings are checked here."""

from typing import TYPE_CHECKING

from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.train.settings import FinetuneSettings


def check_ways(settings: "FinetuneSettings") -> None:
    """Refuse what cannot be, or would be silently left undone."""
    if settings.freeze_layers < 0:
        raise ConfigError(f"freeze_layers is {settings.freeze_layers}; a number of layers was expected, or 0 for none")
    if not 0 < settings.layer_decay <= 1:
        raise ConfigError(f"layer_decay is {settings.layer_decay}; a share above 0 and up to 1 was expected")
    if settings.adapter_size is not None and settings.adapter_size < 1:
        raise ConfigError(f"adapter_size is {settings.adapter_size}; at least 1 was expected")
    if settings.adapter_size is not None and settings.adapter is None:
        raise ConfigError(
            f"adapter_size is {settings.adapter_size}, but no adapter is trained; choose houlsby or lora as adapter"
        )
    if settings.feature_head != "linear" and settings.frozen is None:
        raise ConfigError(
            f"feature_head is {settings.feature_head!r}, which reads frozen states; choose last, last4 or mix as frozen"
        )
    if settings.precision == "bf16" and settings.frozen is not None:
        raise ConfigError("precision is bf16, but frozen states are computed once, in fp32; leave out one of them")
    chosen = [name for name in ("adapter", "frozen") if getattr(settings, name) is not None]
    chosen += ["freeze_layers"] if settings.freeze_layers else []
    chosen += ["layer_decay"] if settings.layer_decay != 1 else []
    # Freezing some layers and slowing the others go together; an adapter or frozen states leave nothing to freeze.
    if len(chosen) > 1 and chosen[0] in ("adapter", "frozen"):
        raise ConfigError(f"{' and '.join(chosen)} exclude each other; each says what is trained: choose one")
