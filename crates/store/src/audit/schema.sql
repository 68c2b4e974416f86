-- Format 1: who had which address, and when; logins; deeds of administrators. Addresses are blobs of 4 and 16 bytes, times seconds since
-- 1970.
CREATE TABLE sessions (
    seq INTEGER PRIMARY KEY,
    session BLOB NOT NULL,
    user TEXT,
    source TEXT,
    profile TEXT,
    device BLOB,
    outer_address TEXT,
    ipv4 BLOB,
    ipv6 BLOB,
    start_s INTEGER NOT NULL,
    expires_s INTEGER NOT NULL,
    end_s INTEGER,
    reason TEXT
) STRICT;
CREATE UNIQUE INDEX sessions_open ON sessions (session) WHERE end_s IS NULL;
CREATE INDEX sessions_by_ipv4 ON sessions (ipv4, start_s) WHERE ipv4 IS NOT NULL;
CREATE INDEX sessions_by_ipv6 ON sessions (ipv6, start_s) WHERE ipv6 IS NOT NULL;
CREATE INDEX sessions_by_end ON sessions (end_s) WHERE end_s IS NOT NULL;
-- Outer addresses that a session's client had after the first: the lane of its client that had the address, and how many addresses of
-- the session before are not recorded, because there were too many.
CREATE TABLE moves (
    session INTEGER NOT NULL,
    at_s INTEGER NOT NULL,
    outer_address TEXT NOT NULL,
    lane INTEGER NOT NULL,
    left_out INTEGER NOT NULL
) STRICT;
CREATE INDEX moves_by_session ON moves (session, at_s);
CREATE INDEX moves_by_time ON moves (at_s);
CREATE INDEX moves_by_address ON moves (outer_address, at_s);
-- Logins, refusals, deeds of administrators, questions who had an address.
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY,
    at_s INTEGER NOT NULL,
    event TEXT NOT NULL,
    user TEXT,
    outer_address TEXT,
    detail TEXT NOT NULL,
    by TEXT NOT NULL
) STRICT;
CREATE INDEX entries_by_time ON entries (at_s);
-- Times for which events are missing, and how many if that is known.
CREATE TABLE gaps (from_s INTEGER NOT NULL, to_s INTEGER NOT NULL, lost INTEGER, cause TEXT NOT NULL) STRICT;
-- Times in which a gateway wrote here: one without an end was killed after 'alive_s', or runs. 'port_blocks' are the settings by which
-- ports of public addresses are those of inner addresses during it; NULL if there are none.
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    started_s INTEGER NOT NULL,
    alive_s INTEGER NOT NULL,
    ended_s INTEGER,
    port_blocks TEXT
) STRICT;
-- Up to when each personal field has been erased.
CREATE TABLE erased (field TEXT PRIMARY KEY, up_to_s INTEGER NOT NULL) STRICT;
