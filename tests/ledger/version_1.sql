-- The tables of a ledger of version 1, as daskrado 0.2.0 made them.
CREATE TABLE limits (
  id INTEGER PRIMARY KEY AUTOINCREMENT, dataset TEXT NOT NULL, relation TEXT NOT NULL,
  epsilon TEXT NOT NULL, delta TEXT NOT NULL, set_at TEXT NOT NULL
) STRICT;
CREATE TABLE fingerprints (
  id INTEGER PRIMARY KEY AUTOINCREMENT, fingerprint TEXT NOT NULL UNIQUE, dataset TEXT NOT NULL, seen_at TEXT NOT NULL
) STRICT;
CREATE TABLE entries (
  id INTEGER PRIMARY KEY AUTOINCREMENT, dataset TEXT NOT NULL, relation TEXT NOT NULL, event TEXT NOT NULL,
  theorem TEXT NOT NULL, run TEXT NOT NULL, fingerprint TEXT,
  state TEXT NOT NULL CHECK (state IN ('reserved', 'spent', 'void')), reserved_at TEXT NOT NULL, settled_at TEXT
) STRICT;
CREATE INDEX entries_by_budget ON entries (dataset, relation);
CREATE TRIGGER entries_begin BEFORE INSERT ON entries
  WHEN NEW.state <> 'reserved' OR NEW.settled_at IS NOT NULL OR EXISTS (SELECT 1 FROM entries WHERE id = NEW.id)
  BEGIN SELECT RAISE(ABORT, 'a ledger entry begins as a new reservation'); END;
CREATE TRIGGER entries_settle BEFORE UPDATE ON entries
  WHEN OLD.state <> 'reserved' OR NEW.state NOT IN ('spent', 'void') OR NEW.settled_at IS NULL
    OR NEW.id <> OLD.id OR NEW.dataset <> OLD.dataset OR NEW.relation <> OLD.relation OR NEW.event <> OLD.event
    OR NEW.theorem <> OLD.theorem OR NEW.run <> OLD.run OR NEW.fingerprint IS NOT OLD.fingerprint
    OR NEW.reserved_at <> OLD.reserved_at
  BEGIN SELECT RAISE(ABORT, 'a ledger entry changes only once, from reserved to spent or void'); END;
CREATE TRIGGER entries_kept BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'ledger entries are never deleted'); END;

CREATE TRIGGER limits_new BEFORE INSERT ON limits WHEN EXISTS (SELECT 1 FROM limits WHERE id = NEW.id)
  BEGIN SELECT RAISE(ABORT, 'ledger limits are never replaced'); END;
CREATE TRIGGER limits_fixed BEFORE UPDATE ON limits
  BEGIN SELECT RAISE(ABORT, 'ledger limits are never changed'); END;
CREATE TRIGGER limits_kept BEFORE DELETE ON limits
  BEGIN SELECT RAISE(ABORT, 'ledger limits are never deleted'); END;

CREATE TRIGGER fingerprints_new BEFORE INSERT ON fingerprints WHEN EXISTS (SELECT 1 FROM fingerprints WHERE id = NEW.id OR fingerprint = NEW.fingerprint)
  BEGIN SELECT RAISE(ABORT, 'ledger fingerprints are never replaced'); END;
CREATE TRIGGER fingerprints_fixed BEFORE UPDATE ON fingerprints
  BEGIN SELECT RAISE(ABORT, 'ledger fingerprints are never changed'); END;
CREATE TRIGGER fingerprints_kept BEFORE DELETE ON fingerprints
  BEGIN SELECT RAISE(ABORT, 'ledger fingerprints are never deleted'); END;
PRAGMA application_id = 1684108139;
PRAGMA user_version = 1;
