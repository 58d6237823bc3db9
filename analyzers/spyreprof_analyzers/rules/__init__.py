"""Rule files (TOML). `spyreprof.rules` reads them; nothing here is code."""
