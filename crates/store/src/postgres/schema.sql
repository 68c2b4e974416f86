-- Format 6: the tables and columns of ../sqlite, but for 'digest' (a server checks its pages by itself), with those of gateways: 'fleet', 'holder',
-- 'carriers', 'leaving', 'notices' and 'marks'.
CREATE TABLE format (number BIGINT NOT NULL, made_by TEXT NOT NULL);

-- One row. Each change locks it, so that changes follow one another, whichever gateway makes them. 'id' names the gateways that share the
-- database; NULL where it belongs to one. 'generation' is the last one that was given out: a session gets one when it begins and when it moves.
-- 'wireguard' is the public half of the key that its gateways share.
CREATE TABLE fleet (id TEXT, generation BIGINT NOT NULL, wireguard BYTEA CHECK (length(wireguard) = 32));
INSERT INTO fleet (generation) VALUES (0);

-- The gateways that the database belongs to ('gateway' is the identity in its state directory, 'instance' its present start, of which its
-- auth process holds a lock; 'free_since' is when that lock was first missed). The columns from 'heard' are a gateway's last report of itself:
-- 'address' is the one that people are shown, and behind it, after blanks, those at which clients reach it.
CREATE TABLE holder (
    gateway      BYTEA PRIMARY KEY CHECK (length(gateway) = 16),
    instance     BYTEA CHECK (length(instance) = 16),
    name         TEXT COLLATE "C" NOT NULL UNIQUE,
    since        TIMESTAMPTZ NOT NULL DEFAULT now(),
    free_since   TIMESTAMPTZ,
    heard        TIMESTAMPTZ,
    address      TEXT,
    version      TEXT NOT NULL DEFAULT '',
    sessions     BIGINT NOT NULL DEFAULT 0,
    held         BIGINT NOT NULL DEFAULT 0,
    load_percent BIGINT NOT NULL DEFAULT 0,
    draining     BIGINT NOT NULL DEFAULT 0 CHECK (draining IN (0, 1))
);

-- Which gateway carries a session, and whether its client was away by that gateway's last report. The row outlives the session until that
-- gateway has ended it.
CREATE TABLE carriers (
    session    BYTEA PRIMARY KEY CHECK (length(session) = 16),
    gateway    BYTEA NOT NULL,
    generation BIGINT NOT NULL,
    away       BIGINT NOT NULL DEFAULT 0 CHECK (away IN (0, 1))
);
CREATE INDEX carriers_gateway ON carriers (gateway);

-- Sessions that a gateway has lost to another one, until it has dropped them, with the latest generation at that time. No other device gets
-- their addresses before.
CREATE TABLE leaving (
    gateway    BYTEA NOT NULL,
    session    BYTEA NOT NULL CHECK (length(session) = 16),
    generation BIGINT NOT NULL,
    address    BYTEA NOT NULL CHECK (length(address) IN (4, 16)),
    PRIMARY KEY (gateway, session, address)
);
CREATE INDEX leaving_address ON leaving (address);

-- What gateways let one another know, in the order of the changes that did; 'origin' is the process that has made it.
CREATE TABLE notices (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin BYTEA NOT NULL CHECK (length(origin) = 16),
    made   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    body   BYTEA NOT NULL
);
CREATE INDEX notices_made ON notices (made);

-- The newest changes, each by a random mark: a change whose COMMIT was not answered was made if its mark is here.
CREATE TABLE marks (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    mark   BYTEA NOT NULL UNIQUE CHECK (length(mark) = 16)
);

CREATE TABLE users (
    id          BYTEA PRIMARY KEY CHECK (length(id) = 16),
    name        TEXT COLLATE "C" NOT NULL UNIQUE,
    source      TEXT COLLATE "C" NOT NULL,
    subject     TEXT COLLATE "C" NOT NULL,
    password    TEXT COLLATE "C" NOT NULL,
    enabled     BIGINT NOT NULL CHECK (enabled IN (0, 1)),
    generation  BIGINT NOT NULL DEFAULT 0,
    totp_secret BYTEA,
    totp_step   BIGINT NOT NULL DEFAULT 0,
    created_s   BIGINT NOT NULL,
    expires_s   BIGINT,
    lapsed      BIGINT NOT NULL DEFAULT 0 CHECK (lapsed IN (0, 1)),
    sponsor     TEXT COLLATE "C",
    note        TEXT COLLATE "C" NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX users_subject ON users (source, subject);
CREATE UNIQUE INDEX users_nocase ON users (lower(name COLLATE "C"));
CREATE INDEX users_expiry ON users (expires_s, lapsed) WHERE expires_s IS NOT NULL;

CREATE TABLE memberships (
    user_id BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name    TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (user_id, name)
);

CREATE TABLE certificates (
    sha256  BYTEA PRIMARY KEY CHECK (length(sha256) = 32),
    user_id BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX certificates_user ON certificates (user_id);

CREATE TABLE revoked_certificates (
    sha256  BYTEA PRIMARY KEY CHECK (length(sha256) = 32),
    user_id BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    at_s    BIGINT NOT NULL
);
CREATE INDEX revoked_certificates_user ON revoked_certificates (user_id);

CREATE TABLE fixed_addresses (
    address BYTEA PRIMARY KEY CHECK (length(address) IN (4, 16)),
    user_id BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device  BYTEA CHECK (length(device) = 16)
);
CREATE INDEX fixed_addresses_user ON fixed_addresses (user_id);

CREATE TABLE sources (
    user_id BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    source  TEXT COLLATE "C" NOT NULL,
    seen_s  BIGINT NOT NULL,
    PRIMARY KEY (user_id, source)
);

CREATE TABLE sessions (
    id          BYTEA PRIMARY KEY CHECK (length(id) = 16),
    user_id     BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device      BYTEA NOT NULL CHECK (length(device) = 16),
    settled     BYTEA NOT NULL CHECK (length(settled) = 32),
    fresh       BYTEA CHECK (length(fresh) = 32),
    started_s   BIGINT NOT NULL,
    expires_s   BIGINT NOT NULL,
    epoch       BIGINT NOT NULL,
    amr         TEXT COLLATE "C" NOT NULL,
    auth_time_s BIGINT NOT NULL
);
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_expiry ON sessions (expires_s);

CREATE TABLE leases (
    address BYTEA PRIMARY KEY CHECK (length(address) IN (4, 16)),
    user_id BYTEA NOT NULL,
    device  BYTEA NOT NULL,
    session BYTEA NOT NULL,
    until_s BIGINT NOT NULL
);
CREATE INDEX leases_owner ON leases (user_id, device);
CREATE INDEX leases_session ON leases (session);

CREATE TABLE revocations (
    seq     BIGINT PRIMARY KEY,
    user_id BYTEA NOT NULL,
    name    TEXT COLLATE "C" NOT NULL,
    cause   TEXT COLLATE "C" NOT NULL,
    device  BYTEA CHECK (length(device) = 16),
    at_s    BIGINT NOT NULL
);
-- One row: the number of the last revocation, and of the last one that was forgotten. A number is never used again.
CREATE TABLE revocation_number (number BIGINT NOT NULL, forgotten BIGINT NOT NULL);
INSERT INTO revocation_number (number, forgotten) VALUES (0, 0);

CREATE TABLE past_revocations (
    user_id BYTEA PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    count   BIGINT NOT NULL CHECK (count > 0)
);

CREATE TABLE wireguard_devices (
    public_key BYTEA PRIMARY KEY CHECK (length(public_key) = 32),
    user_id    BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device     BYTEA NOT NULL UNIQUE CHECK (length(device) = 16),
    name       TEXT COLLATE "C" NOT NULL,
    preshared  BYTEA CHECK (length(preshared) = 32),
    renewed_s  BIGINT NOT NULL,
    walled_s   BIGINT,
    latest     BYTEA CHECK (length(latest) = 12),
    latest_own BYTEA CHECK (length(latest_own) = 12),
    "outer"    TEXT COLLATE "C"
);
CREATE INDEX wireguard_devices_user ON wireguard_devices (user_id);

CREATE TABLE wireguard_changes (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_key BYTEA NOT NULL CHECK (length(public_key) = 32)
);
CREATE FUNCTION wireguard_device_changed() RETURNS trigger LANGUAGE plpgsql SET search_path = vpnd AS
    $$ BEGIN INSERT INTO wireguard_changes (public_key) VALUES (coalesce(new.public_key, old.public_key)); RETURN NULL; END $$;
CREATE FUNCTION wireguard_user_changed() RETURNS trigger LANGUAGE plpgsql SET search_path = vpnd AS
    $$ BEGIN INSERT INTO wireguard_changes (public_key) SELECT public_key FROM wireguard_devices WHERE user_id = new.id;
       RETURN NULL; END $$;
CREATE FUNCTION wireguard_membership_changed() RETURNS trigger LANGUAGE plpgsql SET search_path = vpnd AS
    $$ BEGIN INSERT INTO wireguard_changes (public_key)
       SELECT public_key FROM wireguard_devices WHERE user_id = coalesce(new.user_id, old.user_id); RETURN NULL; END $$;
CREATE FUNCTION wireguard_changes_kept() RETURNS trigger LANGUAGE plpgsql SET search_path = vpnd AS
    $$ BEGIN DELETE FROM wireguard_changes WHERE number <= (SELECT max(number) FROM wireguard_changes) - 1000; RETURN NULL; END $$;
CREATE TRIGGER wireguard_added AFTER INSERT OR DELETE ON wireguard_devices
    FOR EACH ROW EXECUTE FUNCTION wireguard_device_changed();
CREATE TRIGGER wireguard_changed AFTER UPDATE OF name, preshared, renewed_s, walled_s ON wireguard_devices
    FOR EACH ROW EXECUTE FUNCTION wireguard_device_changed();
CREATE TRIGGER wireguard_forgotten AFTER UPDATE OF latest ON wireguard_devices
    FOR EACH ROW WHEN (new.latest IS NULL) EXECUTE FUNCTION wireguard_device_changed();
CREATE TRIGGER wireguard_user AFTER UPDATE OF name, source, enabled, lapsed ON users
    FOR EACH ROW EXECUTE FUNCTION wireguard_user_changed();
CREATE TRIGGER wireguard_member AFTER INSERT OR DELETE ON memberships
    FOR EACH ROW EXECUTE FUNCTION wireguard_membership_changed();
CREATE TRIGGER wireguard_kept AFTER INSERT ON wireguard_changes
    FOR EACH STATEMENT EXECUTE FUNCTION wireguard_changes_kept();

CREATE TABLE known_devices (
    user_id BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device  BYTEA NOT NULL CHECK (length(device) = 16),
    added_s BIGINT NOT NULL,
    seen_s  BIGINT,
    network TEXT COLLATE "C",
    PRIMARY KEY (user_id, device)
);

CREATE TABLE invitations (
    user_id    BYTEA PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    token      BYTEA NOT NULL UNIQUE CHECK (length(token) = 32),
    until_s    BIGINT NOT NULL,
    generation BIGINT NOT NULL
);

CREATE TABLE api_tokens (
    name      TEXT COLLATE "C" PRIMARY KEY,
    role      TEXT COLLATE "C" NOT NULL,
    created_s BIGINT NOT NULL,
    until_s   BIGINT NOT NULL,
    hash      BYTEA NOT NULL CHECK (length(hash) = 32)
);

CREATE TABLE refresh_tokens (
    user_id BYTEA PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    token   TEXT COLLATE "C" NOT NULL
);

CREATE TABLE provider_sessions (
    user_id BYTEA NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    session BYTEA NOT NULL CHECK (length(session) = 32),
    at_s    BIGINT NOT NULL,
    PRIMARY KEY (user_id, session)
);
CREATE INDEX provider_sessions_session ON provider_sessions (session);
