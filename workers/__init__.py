"""Hardware workers: a supervisor process and an engine process that packs requests into static shapes."""
