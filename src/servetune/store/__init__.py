"""What is measured, on disk: an SQLite index plus one file of raw records for each run."""

from servetune.store.database import LostServer, Store, StoredTrial

__all__ = ["LostServer", "Store", "StoredTrial"]
