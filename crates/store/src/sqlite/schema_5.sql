-- Format 5. The factors by which the user of a session has logged in, names of RFC 8176 with spaces between them, and when that was,
-- seconds since 1970. Of sessions that were there before it is not known, so they have proved none.
ALTER TABLE sessions ADD COLUMN amr TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN auth_time_s INTEGER NOT NULL DEFAULT 0;
