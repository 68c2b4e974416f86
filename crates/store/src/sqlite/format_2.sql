-- Format 2 adds WireGuard devices, when and where devices were there last, invitations, tokens of the API, and refresh tokens and sessions of OpenID providers. 'latest' and 'latest_own' are the latest handshakes' timestamps (TAI64N) of the device and of the
-- gateway, 'outer' is where the device was heard from last; the digest of the user covers the rest.
CREATE TABLE wireguard_devices (
    public_key BLOB PRIMARY KEY CHECK (length(public_key) = 32),
    user_id    BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device     BLOB NOT NULL UNIQUE CHECK (length(device) = 16),
    name       TEXT NOT NULL,
    preshared  BLOB CHECK (length(preshared) = 32),
    renewed_s  INTEGER NOT NULL,
    walled_s   INTEGER,
    latest     BLOB CHECK (length(latest) = 12),
    latest_own BLOB CHECK (length(latest_own) = 12),
    outer      TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX wireguard_devices_user ON wireguard_devices (user_id);

-- The newest changes of who may have which device, by numbers that only grow: each names a device, or one of a user that has changed.
CREATE TABLE wireguard_changes (
    number     INTEGER PRIMARY KEY,
    public_key BLOB NOT NULL CHECK (length(public_key) = 32)
) STRICT;
CREATE TRIGGER wireguard_added AFTER INSERT ON wireguard_devices
    BEGIN INSERT INTO wireguard_changes (public_key) VALUES (new.public_key); END;
CREATE TRIGGER wireguard_removed AFTER DELETE ON wireguard_devices
    BEGIN INSERT INTO wireguard_changes (public_key) VALUES (old.public_key); END;
CREATE TRIGGER wireguard_changed AFTER UPDATE OF name, preshared, renewed_s, walled_s ON wireguard_devices
    BEGIN INSERT INTO wireguard_changes (public_key) VALUES (new.public_key); END;
CREATE TRIGGER wireguard_forgotten AFTER UPDATE OF latest ON wireguard_devices WHEN new.latest IS NULL
    BEGIN INSERT INTO wireguard_changes (public_key) VALUES (new.public_key); END;
CREATE TRIGGER wireguard_user AFTER UPDATE OF name, source, enabled, lapsed ON users
    BEGIN INSERT INTO wireguard_changes (public_key) SELECT public_key FROM wireguard_devices WHERE user_id = new.id; END;
CREATE TRIGGER wireguard_joined AFTER INSERT ON memberships
    BEGIN INSERT INTO wireguard_changes (public_key) SELECT public_key FROM wireguard_devices WHERE user_id = new.user_id; END;
CREATE TRIGGER wireguard_left AFTER DELETE ON memberships
    BEGIN INSERT INTO wireguard_changes (public_key) SELECT public_key FROM wireguard_devices WHERE user_id = old.user_id; END;
CREATE TRIGGER wireguard_kept AFTER INSERT ON wireguard_changes
    BEGIN DELETE FROM wireguard_changes WHERE number <= new.number - 1000; END;

-- When a device was added and was there last, and the /24 or /48 where it was. Its user sees that; it decides nothing.
CREATE TABLE known_devices (
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device  BLOB NOT NULL CHECK (length(device) = 16),
    added_s INTEGER NOT NULL,
    seen_s  INTEGER,
    network TEXT,
    PRIMARY KEY (user_id, device)
) STRICT, WITHOUT ROWID;

-- 'token' is a hash. An invitation is void once its user's generation is another.
CREATE TABLE invitations (
    user_id    BLOB PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    token      BLOB NOT NULL UNIQUE CHECK (length(token) = 32),
    until_s    INTEGER NOT NULL,
    generation INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- 'hash' is of the token's secret and of all else in the row.
CREATE TABLE api_tokens (
    name      TEXT PRIMARY KEY,
    role      TEXT NOT NULL,
    created_s INTEGER NOT NULL,
    until_s   INTEGER NOT NULL,
    hash      BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT, WITHOUT ROWID;

CREATE TABLE refresh_tokens (
    user_id BLOB PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    token   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Sessions of browsers at OpenID providers, by hashes.
CREATE TABLE provider_sessions (
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    session BLOB NOT NULL CHECK (length(session) = 32),
    at_s    INTEGER NOT NULL,
    PRIMARY KEY (user_id, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX provider_sessions_session ON provider_sessions (session);

-- What is looked for several times a second: users whose time has ended, or goes on again, and whether one was disabled.
DROP INDEX users_expiry;
CREATE INDEX users_expiry ON users (lapsed, expires_s) WHERE expires_s IS NOT NULL;
CREATE INDEX revocations_name ON revocations (name, at_s);
