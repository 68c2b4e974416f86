-- Changes of sessions.
CREATE TABLE IF NOT EXISTS changes (
    session BLOB PRIMARY KEY CHECK (length(session) = 16),
    settled BLOB CHECK (length(settled) = 32),
    fresh   BLOB CHECK (length(fresh) = 32),
    epoch   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- Timestamps of WireGuard handshakes.
CREATE TABLE IF NOT EXISTS handshakes (
    public_key BLOB NOT NULL CHECK (length(public_key) = 32),
    is_own     INTEGER NOT NULL,
    time       BLOB NOT NULL CHECK (length(time) = 12),
    PRIMARY KEY (public_key, is_own)
) STRICT, WITHOUT ROWID;
-- WireGuard devices that were kicked.
CREATE TABLE IF NOT EXISTS walls (
    device BLOB PRIMARY KEY CHECK (length(device) = 16),
    at_s   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- Users who were kicked or disabled at all gateways of a fleet, by a command here or by another gateway.
CREATE TABLE IF NOT EXISTS kicks (
    id         BLOB PRIMARY KEY CHECK (length(id) = 16),
    user       TEXT NOT NULL,
    at_s       INTEGER NOT NULL,
    steady     INTEGER,
    is_own     INTEGER NOT NULL,
    is_disable INTEGER NOT NULL,
    source     TEXT,
    here       INTEGER,
    ended      INTEGER
) STRICT, WITHOUT ROWID;
-- The other gateways that have carried them out.
CREATE TABLE IF NOT EXISTS confirmations (
    kick    BLOB NOT NULL,
    gateway TEXT NOT NULL,
    ended   INTEGER,
    PRIMARY KEY (kick, gateway)
) STRICT, WITHOUT ROWID;
