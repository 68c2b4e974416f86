-- Format 2 adds WireGuard devices, invitations, tokens of the API and refresh tokens of OpenID providers. 'latest' and 'latest_own' are the latest handshakes' timestamps (TAI64N) of the device and of the
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

-- One row: a number that grows with each change of who may have which device.
CREATE TABLE wireguard_version (number INTEGER NOT NULL) STRICT;
INSERT INTO wireguard_version (number) VALUES (1);
CREATE TRIGGER wireguard_added AFTER INSERT ON wireguard_devices
    BEGIN UPDATE wireguard_version SET number = number + 1; END;
CREATE TRIGGER wireguard_removed AFTER DELETE ON wireguard_devices
    BEGIN UPDATE wireguard_version SET number = number + 1; END;
CREATE TRIGGER wireguard_changed AFTER UPDATE OF name, preshared, renewed_s, walled_s ON wireguard_devices
    BEGIN UPDATE wireguard_version SET number = number + 1; END;
CREATE TRIGGER wireguard_forgotten AFTER UPDATE OF latest ON wireguard_devices WHEN new.latest IS NULL
    BEGIN UPDATE wireguard_version SET number = number + 1; END;
CREATE TRIGGER wireguard_user AFTER UPDATE OF enabled, lapsed ON users
    BEGIN UPDATE wireguard_version SET number = number + 1; END;

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
