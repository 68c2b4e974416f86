-- The lane of its client that had the address, and how many addresses of the session before are not recorded, because there were too many.
ALTER TABLE moves ADD COLUMN lane INTEGER NOT NULL DEFAULT 0;
ALTER TABLE moves ADD COLUMN left_out INTEGER NOT NULL DEFAULT 0;
CREATE INDEX moves_by_address ON moves (outer_address, at_s);
