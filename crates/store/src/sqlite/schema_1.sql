-- Format 1. Times are seconds since 1970; identifiers are 16 random bytes.
CREATE TABLE users (
    id          BLOB PRIMARY KEY CHECK (length(id) = 16),
    name        TEXT NOT NULL UNIQUE,
    password    TEXT NOT NULL,
    enabled     INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    generation  INTEGER NOT NULL DEFAULT 0,
    totp_secret BLOB,
    totp_step   INTEGER NOT NULL DEFAULT 0,
    created_s   INTEGER NOT NULL
) STRICT;

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

-- Places from which a user has logged in before: guesses from elsewhere can't lock them out.
CREATE TABLE sources (
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    source  TEXT NOT NULL,
    seen_s  INTEGER NOT NULL,
    PRIMARY KEY (user_id, source)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    id        BLOB PRIMARY KEY CHECK (length(id) = 16),
    user_id   BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device    BLOB NOT NULL CHECK (length(device) = 16),
    settled   BLOB NOT NULL CHECK (length(settled) = 32),
    fresh     BLOB CHECK (length(fresh) = 32),
    started_s INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    expires_s INTEGER NOT NULL
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

-- AUTOINCREMENT: a number is never used again, whatever is deleted.
CREATE TABLE revocations (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id BLOB NOT NULL,
    name    TEXT NOT NULL,
    cause   TEXT NOT NULL,
    at_s    INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at_s   INTEGER NOT NULL,
    event  TEXT NOT NULL,
    user   TEXT NOT NULL,
    source TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
