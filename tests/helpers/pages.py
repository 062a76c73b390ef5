"""What a report shows, as plain data."""

import json
import re

from chronofed.reports.web.packed import unpacked


def content_of(page):
    """Return the data inside the HTML of a report."""
    return unpacked(json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.S)[1]))
