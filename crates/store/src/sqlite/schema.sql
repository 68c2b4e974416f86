-- Format 1; format_2.sql goes on from it. Times are seconds since 1970; identifiers are 16 random bytes.

-- A user is (source, subject): those of this store have the source 'local' and their name as subject. Users of other sources have an
-- empty password, which no password matches. 'lapsed' notes that the end at expires_s was made known as a revocation. SQLite finds damage
-- to its own structure, not to the bytes of a row, so 'digest' covers all that decides whether the user is let in.
CREATE TABLE users (
    id          BLOB PRIMARY KEY CHECK (length(id) = 16),
    name        TEXT NOT NULL UNIQUE,
    source      TEXT NOT NULL,
    subject     TEXT NOT NULL,
    password    TEXT NOT NULL,
    enabled     INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    generation  INTEGER NOT NULL DEFAULT 0,
    totp_secret BLOB,
    totp_step   INTEGER NOT NULL DEFAULT 0,
    created_s   INTEGER NOT NULL,
    expires_s   INTEGER,
    lapsed      INTEGER NOT NULL DEFAULT 0 CHECK (lapsed IN (0, 1)),
    sponsor     TEXT,
    note        TEXT NOT NULL DEFAULT '',
    digest      BLOB CHECK (length(digest) = 32)
) STRICT;
CREATE UNIQUE INDEX users_subject ON users (source, subject);
-- Names that differ in case alone are no two names.
CREATE UNIQUE INDEX users_nocase ON users (name COLLATE NOCASE);
CREATE INDEX users_expiry ON users (expires_s, lapsed) WHERE expires_s IS NOT NULL;

CREATE TABLE memberships (
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name    TEXT NOT NULL,
    PRIMARY KEY (user_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE certificates (
    sha256  BLOB PRIMARY KEY CHECK (length(sha256) = 32),
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX certificates_user ON certificates (user_id);

-- A certificate that was revoked stays one of its user's, so that the user goes on having to show one.
CREATE TABLE revoked_certificates (
    sha256  BLOB PRIMARY KEY CHECK (length(sha256) = 32),
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    at_s    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX revoked_certificates_user ON revoked_certificates (user_id);

-- Inner addresses that one user has for good, on one device or, without one, on whichever logs in first.
CREATE TABLE fixed_addresses (
    address BLOB PRIMARY KEY CHECK (length(address) IN (4, 16)),
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device  BLOB CHECK (length(device) = 16)
) STRICT, WITHOUT ROWID;
CREATE INDEX fixed_addresses_user ON fixed_addresses (user_id);

-- Places from which a user has logged in before: guesses from elsewhere can't lock them out.
CREATE TABLE sources (
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    source  TEXT NOT NULL,
    seen_s  INTEGER NOT NULL,
    PRIMARY KEY (user_id, source)
) STRICT, WITHOUT ROWID;

-- 'amr' has the factors by which the user logged in, names of RFC 8176 with spaces between them.
CREATE TABLE sessions (
    id          BLOB PRIMARY KEY CHECK (length(id) = 16),
    user_id     BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device      BLOB NOT NULL CHECK (length(device) = 16),
    settled     BLOB NOT NULL CHECK (length(settled) = 32),
    fresh       BLOB CHECK (length(fresh) = 32),
    started_s   INTEGER NOT NULL,
    expires_s   INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    amr         TEXT NOT NULL,
    auth_time_s INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_expiry ON sessions (expires_s);

-- One row for each address, so there can't be two leases on it. Rows outlive their user until the deadline.
CREATE TABLE leases (
    address BLOB PRIMARY KEY CHECK (length(address) IN (4, 16)),
    user_id BLOB NOT NULL,
    device  BLOB NOT NULL,
    session BLOB NOT NULL,
    until_s INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_owner ON leases (user_id, device);
CREATE INDEX leases_session ON leases (session);

-- AUTOINCREMENT: a number is never used again, whatever is deleted. 'device' is the device, where the event is about one alone.
CREATE TABLE revocations (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id BLOB NOT NULL,
    name    TEXT NOT NULL,
    cause   TEXT NOT NULL,
    device  BLOB CHECK (length(device) = 16),
    at_s    INTEGER NOT NULL
) STRICT;

-- How many revocations of a user the worker has carried out and are forgotten: with those that are there they are as many as the user's
-- generation counts.
CREATE TABLE past_revocations (
    user_id BLOB PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    count   INTEGER NOT NULL CHECK (count > 0)
) STRICT, WITHOUT ROWID;
