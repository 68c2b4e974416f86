-- Format 6. Inner addresses that one user has for good, on one device or, without one, on whichever logs in first.
CREATE TABLE fixed_addresses (
    address BLOB PRIMARY KEY CHECK (length(address) IN (4, 16)),
    user_id BLOB NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    device  BLOB CHECK (length(device) = 16)
) STRICT, WITHOUT ROWID;
CREATE INDEX fixed_addresses_user ON fixed_addresses (user_id);
