"""The tables of `run.db`, and what each state of a rollout leaves in them.

The contract, which resume and every view rest on:

- `prompts`: one line per distinct dataset row (equal rows are told apart by their number). `position` is its place in the
  dataset as last given; NULL when that dataset no longer has it: what it cost is kept and merged, but it is not run again.
- `rollouts`: one line per (prompt, sample). `outcome` is `pending` until an attempt counts; then `completed` or `partial`
  (done, never run again) or `failed` (run again on resume). `attempt_id` names the attempt that counts.
- `attempts`: one line per attempt that ended, with its whole record. A failed attempt is a line too. An attempt that was
  killed, cancelled or lost with its worker leaves no line: a made-up one would look like an outcome on resume.
- An outcome is done when its transaction is: the attempt and the rollout's outcome change in one.
- Nothing here says `discarded`: filters are applied by views, so changing one never runs a model.
- `rollouts.suspect`: 0; 1 when a worker died with the rollout and others in it, so that its next attempt runs alone; 2 when it
  died with it alone as well: failed, and not run again unless asked for (`POISON`).
- `tool_schemas`: the tools as they were sent, once per hash. `configs`: each configuration that attempts were made with, once per
  hash. `sessions`: one line per start of the run, with its settings and all that it has spent, also on rollouts that were lost.
- `decisions`: why a session slowed down, paused or stopped.
- `meta`: the run's identity (`run`: name, model, distribution, …), what its views depend on (`views`: filter, all names of its
  tools), whether files on the disk may be older than that (`views_stale`), whether a session began and has not made the files
  of the whole run yet (`views_behind`), that another tool's files were taken over, or that there were none (`adopted`), and what
  its sandboxes are called and where they may be (`sandboxes`). The schema's version is `PRAGMA user_version`.
"""

from __future__ import annotations

VERSION = 4

POISON = 2
"""`rollouts.suspect` of a rollout that has killed its worker twice."""

_NEW_IN_2 = """
CREATE TABLE configs (hash TEXT PRIMARY KEY, info TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE decisions (
  id INTEGER PRIMARY KEY,
  session_id INTEGER NOT NULL REFERENCES sessions,
  at REAL NOT NULL,                  -- Unix seconds
  kind TEXT NOT NULL,
  detail TEXT NOT NULL
);
"""

SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE prompts (
  id INTEGER PRIMARY KEY,
  key BLOB NOT NULL UNIQUE,          -- 16 bytes: hash of messages, image, cwd and the number among equal rows
  position INTEGER                   -- prompt_index in the dataset as last given, NULL: no longer there
);
CREATE INDEX prompts_position ON prompts (position);

CREATE TABLE payloads (              -- apart from prompts, so that planning reads and writes small lines
  prompt_id INTEGER PRIMARY KEY REFERENCES prompts,
  payload BLOB NOT NULL              -- msgpack of trajectory.types.Prompt
);

CREATE TABLE rollouts (
  id INTEGER PRIMARY KEY,
  prompt_id INTEGER NOT NULL REFERENCES prompts,
  sample_index INTEGER NOT NULL,
  batch_num INTEGER NOT NULL DEFAULT -1,
  outcome TEXT NOT NULL DEFAULT 'pending' CHECK (outcome IN ('pending', 'completed', 'partial', 'failed')),
  attempts INTEGER NOT NULL DEFAULT 0,
  attempt_id INTEGER,                -- of the attempt that counts (no REFERENCES: a cycle, and a scan per deleted attempt)
  suspect INTEGER NOT NULL DEFAULT 0,
  UNIQUE (prompt_id, sample_index)
);
CREATE INDEX rollouts_batch ON rollouts (batch_num);
CREATE INDEX rollouts_open ON rollouts (outcome) WHERE outcome IN ('pending', 'failed');

CREATE TABLE attempts (
  id INTEGER PRIMARY KEY,
  rollout_id INTEGER NOT NULL REFERENCES rollouts,
  session_id INTEGER NOT NULL REFERENCES sessions,
  attempt INTEGER NOT NULL,          -- from 1, over all sessions
  outcome TEXT NOT NULL,
  reason TEXT NOT NULL,
  error_class TEXT NOT NULL,
  error TEXT NOT NULL,
  started REAL NOT NULL,             -- Unix seconds
  seconds REAL NOT NULL,
  model_seconds REAL NOT NULL,
  tool_seconds REAL NOT NULL,
  api_calls INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL,
  cost REAL NOT NULL,                -- US dollars; as the tokens, of its tools' model calls and sub-agents too
  assistant_turns INTEGER NOT NULL,
  reasoning_turns INTEGER NOT NULL,
  unknown_tools TEXT NOT NULL,       -- JSON list of names that are no tool of the run
  tool_counts TEXT NOT NULL,         -- JSON object: tool -> [calls, failures]
  tool_timeouts INTEGER NOT NULL DEFAULT 0,
  redacted INTEGER NOT NULL DEFAULT 0,   -- secrets taken out of tool results
  config TEXT NOT NULL DEFAULT '',   -- hash of the configuration, "" where it is not known
  children INTEGER NOT NULL DEFAULT 0,   -- sub-agents that it started; their records are in its own
  fallback_calls INTEGER NOT NULL DEFAULT 0, -- model calls that another model than the run's answered
  context_cuts INTEGER NOT NULL DEFAULT 0,   -- tool results that its model was sent without their middle
  cache_write_tokens INTEGER NOT NULL DEFAULT 0,
  record BLOB NOT NULL               -- trajectory.record.encode_record; last, since reading past it means reading all of it
);
CREATE INDEX attempts_rollout ON attempts (rollout_id);

CREATE TABLE tool_schemas (hash TEXT PRIMARY KEY, schemas TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE sessions (
  id INTEGER PRIMARY KEY,
  started REAL NOT NULL,
  seconds REAL NOT NULL DEFAULT 0,   -- kept up while it runs, so that a killed session counts too
  settings TEXT NOT NULL,            -- JSON, without secrets
  version TEXT NOT NULL,
  cost REAL NOT NULL DEFAULT 0,      -- US dollars of every model call, kept up as `seconds` is
  tokens INTEGER NOT NULL DEFAULT 0
);
{_NEW_IN_2}"""

_TO_2 = f"""
ALTER TABLE rollouts ADD COLUMN suspect INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN tool_timeouts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN redacted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN config TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN cost REAL NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0;
{_NEW_IN_2}"""
_TO_3 = "ALTER TABLE attempts ADD COLUMN children INTEGER NOT NULL DEFAULT 0;"
_TO_4 = """
ALTER TABLE attempts ADD COLUMN context_cuts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN fallback_calls INTEGER NOT NULL DEFAULT 0;
INSERT OR REPLACE INTO meta VALUES ('views_stale', '1'); -- rows have columns that those in files have not
"""
UPGRADES = {1: f"{_TO_2}{_TO_3}{_TO_4}", 2: f"{_TO_3}{_TO_4}", 3: _TO_4}
"""Version of a ledger → what brings it to this one."""
