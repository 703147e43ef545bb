"""Table `[bill]` of the settings: tariff, currency, PUE, and the CO₂ of electricity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattline.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from wattline.energy.prices import Price  # importing numpy takes longer than `--help` may

_KEYS = ("price", "currency", "pue", "carbon")


@dataclass(frozen=True)
class BillSettings:
    """Settings of bills; None: not set, and the bill says so."""

    price: Price | None = None  # money per kWh
    carbon: Price | None = None  # g CO₂ per kWh
    currency: str = ""

    @property
    def pue(self) -> float:
        """Energy of the site over that of its computers; 1 if nothing is set."""
        known = self.price or self.carbon
        return 1.0 if known is None else known.pue


NO_TARIFF = BillSettings()


def parse_bill_settings(table: Any, where: str, folder: Path) -> BillSettings:
    """Return the settings of a table; *where* begins an error, files are relative to *folder*."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: bill is {table!r}, expected a table [bill]")
    for key in table:
        if key not in _KEYS:
            expected = ", ".join(_KEYS)
            raise ConfigError(
                f"{where}: bill.{key} is unknown, expected one of {expected}", did_you_mean(key, _KEYS)
            )
    pue, currency = table.get("pue", 1.0), table.get("currency", "")
    if isinstance(pue, bool) or not isinstance(pue, int | float) or not 1 <= pue <= 10:
        raise ConfigError(f"{where}: bill.pue is {pue!r}, expected a number from 1 to 10")
    if not isinstance(currency, str) or not currency.isprintable() or len(currency) > 10:
        raise ConfigError(f"{where}: bill.currency is {currency!r}, expected a name such as EUR")
    if not ("price" in table or "carbon" in table):
        return BillSettings(currency=currency)
    from wattline.energy.prices import parse_carbon, parse_price, read_carbon_beside_prices

    texts = {key: _read_text(table, key, where, folder) for key in ("price", "carbon")}
    try:
        price = parse_price(texts["price"], pue) if texts["price"] else None
        carbon = parse_carbon(texts["carbon"], pue) if texts["carbon"] else None
        if carbon is None and texts["price"]:
            carbon = read_carbon_beside_prices(texts["price"], pue)
    except ConfigError as error:
        raise ConfigError(f"{where}: bill: {error.message}", error.hint) from None
    return BillSettings(price, carbon, currency)


def _read_text(table: dict[str, Any], key: str, where: str, folder: Path) -> str:
    """Return a value as text, with the path of a file made absolute; empty: it is not set."""
    value = table.get(key, "")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{where}: bill.{key} is {value!r}, expected a number per kWh, or a CSV file")
    text = str(value)
    return str(folder / text) if ".csv" in text.casefold() else text
