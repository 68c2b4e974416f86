-- Format 3. A certificate that was revoked stays one of its user's, so that the user goes on having to show one.
CREATE TABLE revoked_certificates (
    sha256  BLOB PRIMARY KEY CHECK (length(sha256) = 32),
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    at_s    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX revoked_certificates_user ON revoked_certificates (user_id);
