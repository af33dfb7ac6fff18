CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
);

CREATE TABLE trial (
  number         INTEGER PRIMARY KEY,
  fits           TEXT NOT NULL,     -- digest of everything that makes the trial comparable, see study.py
  measurement    TEXT NOT NULL,     -- records.Measurement
  command        TEXT NOT NULL,     -- records.Command, masked
  engine_version TEXT NOT NULL,
  started_at     TEXT NOT NULL,
  outcome        TEXT,              -- records.Completed or records.Failed; NULL: running, or lost when servetune was killed
  start_s        REAL,
  wall_s         REAL NOT NULL,     -- kept up to date with each run, so that a killed trial's cost is known
  peak_rss_mib   REAL,
  log_file       TEXT NOT NULL,
  keeper_pid     INTEGER,           -- pids with their start times (clock ticks since boot) while the server lives
  keeper_start   INTEGER,
  engine_pid     INTEGER,
  engine_start   INTEGER
);

CREATE TABLE run (
  trial    INTEGER NOT NULL REFERENCES trial (number),
  position INTEGER NOT NULL,        -- order within the trial
  fits     TEXT NOT NULL,           -- digest of workload, load and definitions
  record   TEXT NOT NULL,           -- records.Run
  PRIMARY KEY (trial, position)
);
