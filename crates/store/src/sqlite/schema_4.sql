-- Format 4. A user is (source, subject): those of this store have the source 'local' and their name as subject. Users of other
-- sources have an empty password, which no password matches. 'lapsed' notes that the end at expires_s was made known as a revocation.
ALTER TABLE users ADD COLUMN source TEXT NOT NULL DEFAULT 'local';
ALTER TABLE users ADD COLUMN subject TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN expires_s INTEGER;
ALTER TABLE users ADD COLUMN lapsed INTEGER NOT NULL DEFAULT 0 CHECK (lapsed IN (0, 1));
ALTER TABLE users ADD COLUMN sponsor TEXT;
ALTER TABLE users ADD COLUMN note TEXT NOT NULL DEFAULT '';
UPDATE users SET subject = name;
CREATE UNIQUE INDEX users_subject ON users (source, subject);
CREATE INDEX users_expiry ON users (expires_s, lapsed) WHERE expires_s IS NOT NULL;
-- Names that differ in case alone are no two names.
CREATE INDEX users_nocase ON users (name COLLATE NOCASE);

-- The device, where the event is about one alone.
ALTER TABLE revocations ADD COLUMN device BLOB CHECK (length(device) = 16);
