-- Format 7. How many revocations of a user the worker has carried out and are forgotten: with those that are there they are as many
-- as the user's generation counts.
CREATE TABLE past_revocations (
    user_id BLOB PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    count   INTEGER NOT NULL CHECK (count > 0)
) STRICT, WITHOUT ROWID;
