-- Format 2. SQLite finds damage to its own structure, not to the bytes of a row: each user carries a digest of all that
-- decides whether they are let in. It is filled in for the users that are there when this step is taken.
ALTER TABLE users ADD COLUMN digest BLOB CHECK (length(digest) = 32);
